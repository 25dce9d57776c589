"""Short made-up posts, each a pure function of a seed, an index and a topic."""

from __future__ import annotations

import random

OPENERS = ("", "", "", "Just saw this: ", "Honestly, ", "Update: ", "Wow, ", "Anyone else? ", "FYI ", "Ugh, ")
CLOSERS = ("", "", "", "", " Stay safe.", " Thoughts?", " Unbelievable.", " More soon.", " :)", " Not great.")
PLACES = ("the harbour", "Old Town", "the north side", "Mill Street", "the station", "Hillview", "the campus")
TIMES = ("this morning", "right now", "since noon", "again tonight", "for an hour already", "as of today")

TOPICS: dict[str, tuple[str, ...]] = {
    "outage": (
        "the power is out in {place} {time}",
        "no lights anywhere around {place}, whole blocks are dark {time}",
        "blackout at {place}: lifts stuck, traffic lights dead {time}",
        "the electricity went off {time}, the substation near {place} is smoking",
        "crews are on the way to {place} but no word on when power is back",
    ),
    "weather": (
        "rain keeps pouring over {place} {time}",
        "the wind took half the leaves off the trees near {place}",
        "sun is finally out at {place} {time}",
        "fog so thick at {place} that you cannot see the bridge",
        "they expect frost around {place} {time}",
    ),
    "football": (
        "what a goal in the last minute, {place} is celebrating",
        "the keeper saved two penalties {time}, incredible match",
        "our defence was asleep {time}, three goals conceded",
        "tickets for the derby at {place} sold out {time}",
        "the referee missed a clear foul, everyone at {place} saw it",
    ),
    "transit": (
        "the tram to {place} is late {time}",
        "bus line 12 skips {place} {time}, take the metro",
        "a signal failure stopped every train near {place}",
        "new bike lanes open at {place}, so much smoother",
        "ticket machines at {place} refuse cards {time}",
    ),
    "food": (
        "the new bakery at {place} sells the best rye bread",
        "queue for noodles at {place} goes round the corner {time}",
        "tried the lentil soup near {place}, would go again",
        "coffee prices at {place} went up {time}",
        "market day at {place}: strawberries everywhere",
    ),
    "music": (
        "the band at {place} played two hours without a break",
        "someone plays the cello at {place} {time} and it is lovely",
        "the festival at {place} announced its line-up {time}",
        "sound check at {place} {time}, the bass shakes my windows",
        "choir rehearsal moved to {place} {time}",
    ),
    "school": (
        "exam results are out {time}, nervous faces at {place}",
        "the library near {place} extends its hours {time}",
        "teachers at {place} ask for smaller classes",
        "science fair at {place}: a volcano actually erupted",
        "the school run past {place} is chaos {time}",
    ),
    "pets": (
        "lost a grey cat near {place}, answers to Pepper",
        "a dog stole my sandwich at {place} {time}",
        "the shelter at {place} has six kittens {time}",
        "my parrot learned the ringtone of the neighbour {time}",
        "found a tortoise walking along {place} {time}",
    ),
}
EVERYDAY = tuple(topic for topic in TOPICS if topic != "outage")
USERS = 500


def topic_of(seed: int, index: int, *, burst_topic: str | None = None, share: float = 0.0) -> str:
    dice = random.Random(f"topic {seed} {index}")
    if burst_topic is not None and dice.random() < share:
        return burst_topic
    return _pick(dice, EVERYDAY)


def post(seed: int, index: int, topic: str) -> dict[str, str]:
    dice = random.Random(f"post {seed} {index}")
    sentence = _pick(dice, TOPICS[topic]).format(place=_pick(dice, PLACES), time=_pick(dice, TIMES))
    opener, closer = _pick(dice, OPENERS), _pick(dice, CLOSERS)
    text = f"{opener}{sentence if opener else sentence[0].upper() + sentence[1:]}.{closer}"
    return {
        "id": f"post-{index:07d}",
        "user": f"user{int(dice.random() * USERS):03d}",
        "text": text,
        "gold_topic": topic,
    }


def _pick(dice: random.Random, choices: tuple[str, ...]) -> str:
    # Only random(): other methods draw differently between versions of Python.
    return choices[int(dice.random() * len(choices))]
