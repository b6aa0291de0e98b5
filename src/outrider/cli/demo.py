"""The prompts that come with the command line."""

DEMO_MAX_TOKENS = 128

DEMO_PROMPT = '''Rename the variable `total` to `balance` and return the complete updated code:

```python
class Account:
    def __init__(self, owner, total=0):
        self.owner = owner
        self.total = total

    def deposit(self, amount):
        self.total = self.total + amount
        return self.total

    def withdraw(self, amount):
        if amount > self.total:
            raise ValueError("not enough money")
        self.total = self.total - amount
        return self.total
```
'''

WARM_UP_PROMPT = "one two three four one two three four one two three four one two three"
