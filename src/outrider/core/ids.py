"""Names for identifiers that must not be mixed up. Token ids stay plain `int`."""

from typing import NewType

BlockId = NewType("BlockId", int)
RequestId = NewType("RequestId", str)
