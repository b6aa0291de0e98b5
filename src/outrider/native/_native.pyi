from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

FloatRows = np.ndarray[Any, np.dtype[np.float32]]
Blocks = np.ndarray[Any, np.dtype[np.uint8]]
SpanFields = tuple[Sequence[int], int, Sequence[int], int]

NOT_NUMBERS: int
NONE_LEFT: int

def available_isas() -> list[str]: ...

class Machine:
    def __init__(self, threads: int, isa: str = "auto") -> None: ...
    @property
    def threads(self) -> int: ...
    @property
    def isa(self) -> str: ...

class Matrix:
    @staticmethod
    def pack(kind: str, blocks: Blocks, in_features: int) -> Matrix: ...
    @staticmethod
    def quantize(target: str, source: str, values: Blocks, in_features: int) -> Matrix: ...
    def select_rows(self, rows: Sequence[int]) -> Matrix: ...
    def dequantised(self) -> FloatRows: ...
    @property
    def kind(self) -> str: ...
    @property
    def out_features(self) -> int: ...
    @property
    def in_features(self) -> int: ...
    @property
    def bytes(self) -> int: ...

class Weights:
    def __init__(self, **fields: float) -> None: ...
    def set_matrix(self, layer: int, name: str, matrix: Matrix) -> None: ...
    def set_vector(self, layer: int, name: str, values: Sequence[float]) -> None: ...
    def check_complete(self) -> None: ...
    @property
    def embedding(self) -> Matrix: ...
    @property
    def head(self) -> Matrix: ...
    @property
    def bytes(self) -> int: ...

class Result:
    @property
    def logits(self) -> FloatRows | None: ...
    @property
    def features(self) -> FloatRows | None: ...
    @property
    def normed(self) -> FloatRows | None: ...
    @property
    def ids(self) -> list[int]: ...

class Decoder:
    def __init__(
        self,
        machine: Machine,
        weights: Weights,
        frequencies: Sequence[float],
        attention_factor: float,
        num_blocks: int,
        block_size: int,
        kv_type: Literal["int16", "float32"],
    ) -> None: ...
    def forward(
        self,
        spans: Sequence[SpanFields],
        taps: Sequence[int],
        want: Literal["logits", "ids", "hidden"],
        is_causal: bool = True,
        inputs: FloatRows | None = None,
    ) -> Result: ...
    def write_context(self, spans: Sequence[SpanFields], rows: FloatRows) -> None: ...
    def head(self, normed: FloatRows, part: Matrix | None = None) -> FloatRows: ...
    @property
    def kv_bytes(self) -> int: ...

class WarpRule:
    temperature: float
    top_k: int
    top_p: float
    log_min_p: float | None
    repetition_penalty: float
    allowed: Sequence[int] | None
    mask: bytes
    bias: Sequence[tuple[int, float]]
    held_back: Sequence[int]
    seen: Sequence[int]
    penalty: Sequence[tuple[int, float]]
    def __init__(self) -> None: ...

def sample(
    machine: Machine,
    logits: FloatRows,
    rows: Sequence[int],
    rules: Sequence[WarpRule],
    seeds: Sequence[int],
    positions: Sequence[int],
) -> list[int]: ...
def block_loss(
    machine: Machine,
    logits: Any,
    teacher: Any,
    teacher_rows: Any,
    labels: Any,
    weights: Any,
    terms: Any,
) -> None: ...
def softmax_rows(machine: Machine, logits: Any, log_rest: Any) -> None: ...
def log_sum_exp_rows(machine: Machine, logits: Any, result: Any) -> None: ...

class DraftRule:
    warp: WarpRule
    presence_penalty: float
    frequency_penalty: float
    num_held: int
    seed: int
    position: int
    uniforms: Sequence[float]
    def __init__(self) -> None: ...

class BlockDraft:
    @property
    def tokens(self) -> list[int]: ...
    @property
    def confidence(self) -> list[float]: ...
    @property
    def ids(self) -> list[list[int]]: ...
    @property
    def probs(self) -> list[list[float]]: ...

class BlockParts:
    block_size: int
    is_anchor_first: bool
    mask_token: int
    num_candidates: int
    norms_features: bool
    fuse: Matrix
    fused_norm: Sequence[float]
    head: Matrix
    vocabulary: Sequence[int]
    def __init__(self) -> None: ...
    def set_markov(self, kind: str, before: FloatRows, after: FloatRows) -> None: ...
    def set_markov_mix(self, mix: FloatRows, bias: Sequence[float]) -> None: ...
    def set_confidence(self, weight: Sequence[float], bias: float, sees_token: bool) -> None: ...

class BlockRunner:
    def __init__(
        self,
        machine: Machine,
        weights: Weights,
        parts: BlockParts,
        frequencies: Sequence[float],
        attention_factor: float,
        num_blocks: int,
        block_size: int,
        kv_type: Literal["int16", "float32"],
    ) -> None: ...
    def draft(
        self,
        contexts: Sequence[tuple[int, int, Sequence[int]]],
        features: FloatRows,
        rows: Sequence[tuple[int, int, Sequence[int], int, DraftRule]],
    ) -> list[BlockDraft]: ...

class SuffixAutomaton:
    def __init__(self, max_context: int, doubt: float) -> None: ...
    def __len__(self) -> int: ...
    @property
    def tip(self) -> tuple[int, int]: ...
    @property
    def num_states(self) -> int: ...
    @property
    def num_transitions(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    def extend(self, tokens: list[int]) -> None: ...
    def end_sequence(self) -> None: ...
    def follow(self, seat: tuple[int, int], tokens: list[int]) -> tuple[int, int]: ...
    def draft(
        self, seat: tuple[int, int], max_tokens: int, min_match_len: int, min_confidence: float
    ) -> tuple[tuple[int, ...], int, tuple[float, ...]]: ...

class BlendRule:
    max_context: int
    doubt: float
    most_certain: float
    agreed: float
    agreed_by_table: float
    opposed: float
    opposed_by_len: float
    rate: float
    most_correction: float
    last_slot: int
    def __init__(self) -> None: ...

class DraftText:
    def __init__(self, rule: BlendRule) -> None: ...
    def __len__(self) -> int: ...
    @property
    def bytes(self) -> int: ...

class DraftMaker:
    def __init__(
        self,
        rule: BlendRule,
        names: tuple[str, str],
        records: tuple[type[tuple[Any, ...]], type[tuple[Any, ...]]],
        offsets: memoryview | None,
        entries: memoryview | None,
        max_order: int,
    ) -> None: ...
    def draft(
        self,
        calls: Sequence[tuple[DraftText, list[int], int, bool, bool]],
        least: float,
        row_tokens: float,
    ) -> list[Any]: ...
    def merge(
        self,
        said: Sequence[tuple[DraftText, Sequence[int], Sequence[float], tuple[str, ...]]],
    ) -> list[Any]: ...
    def learn(self, judged: Sequence[tuple[DraftText, int, int]]) -> list[float]: ...
