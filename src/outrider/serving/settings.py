"""How `outrider serve` behaves towards its clients. Every default of the server is written here."""

from dataclasses import dataclass, field

from outrider.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """The server's side of things; the engine has its own config. Seconds and bytes."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 lets other machines in."""
    port: int = 8000
    """TCP port; 0 takes any that is free."""
    served_model_name: str | None = None
    """Name clients use for the model; None: what was loaded, as it was given."""
    api_key: str | None = field(default=None, repr=False)
    """What clients must send as a bearer token; None lets everybody in."""
    cors_origins: tuple[str, ...] = ()
    """Web origins that may read answers; none by default."""
    max_queue: int = 64
    """Most continuations that wait for a place among the running ones; more are answered 429."""
    max_request_seconds: float = 600.0
    """A request that is not done after this long is ended."""
    max_body_bytes: int = 4 << 20
    """Largest request body."""
    max_total_tokens: int = 65536
    """Most tokens one HTTP request may ask for: prompts × n × max_tokens."""
    max_connections: int = 512
    """Most open connections."""
    max_header_bytes: int = 16384
    """Largest request line and headers."""
    read_seconds: float = 30.0
    """How long a client may take to send its headers, and then its body."""
    write_seconds: float = 30.0
    """How long a client may leave a full buffer unread."""
    keep_alive_seconds: float = 15.0
    """How long an idle connection stays, and how often a silent stream shows that it lives."""
    drain_seconds: float = 30.0
    """How long requests may go on after SIGTERM."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for name, low in (
            ("max_queue", 0),
            ("max_request_seconds", 0),
            ("max_body_bytes", 1),
            ("max_total_tokens", 1),
            ("max_connections", 1),
            ("max_header_bytes", 1024),
            ("read_seconds", 0),
            ("write_seconds", 0),
            ("keep_alive_seconds", 0),
            ("drain_seconds", 0),
        ):
            if not getattr(self, name) >= low:
                raise ConfigError(f"{name} is {getattr(self, name)}, but it must be {low} or more")
        if not 0 <= self.port <= _LAST_PORT:
            raise ConfigError(f"port is {self.port}, but it must be between 0 and {_LAST_PORT}")
        if self.api_key is not None and not self.api_key.strip():
            raise ConfigError("the API key is empty; name one, or leave it out")


_LAST_PORT = 65535
