"""Who relays, and who gets weights from where."""

from hypothesis import given
from hypothesis import strategies as st

from data.transport.endpoint import Endpoint
from stages.rl.messages import Source
from stages.rl.weights.routes import Routes

ROOT = Source(version=3, digest="d", num_bytes=1, endpoint=Endpoint("root", 1, "t"))


def at(name: str) -> Endpoint:
    return Endpoint(name, 1, "t")


def test_the_learners_own_supernode_gets_weights_from_the_learner_and_has_no_relay() -> None:
    routes = Routes("home")
    routes.join("a", "home")
    assert not routes.relays("a")
    assert routes.source("a", ROOT) == ROOT


def test_another_supernode_waits_until_its_one_relay_listens() -> None:
    routes = Routes("home")
    for member in ("a", "b"):
        routes.join(member, "s1")
    assert [routes.relays(member) for member in ("a", "b")] == [True, False]
    assert routes.source("b", ROOT) is None
    routes.listens("b", at("b"))  # it is not the relay
    assert routes.source("b", ROOT) is None
    routes.listens("a", at("a"))
    assert routes.source("a", ROOT) == routes.source("b", ROOT) == ROOT.model_copy(update={"endpoint": at("a")})


def test_when_the_relay_leaves_the_next_one_is_appointed() -> None:
    routes = Routes("home")
    for member in ("a", "b", "c"):
        routes.join(member, "s1")
    routes.listens("a", at("a"))
    routes.leave("a")
    assert [routes.relays(member) for member in ("b", "c")] == [True, False]
    assert routes.source("c", ROOT) is None
    routes.join("a", "s1")
    assert not routes.relays("a")


def test_a_relay_that_half_of_its_members_cannot_use_is_replaced_and_one_that_a_single_member_cannot_use_is_not() -> (
    None
):
    routes = Routes("home")
    for member in ("a", "b", "c", "d", "e"):
        routes.join(member, "s1")
    routes.listens("a", at("a"))
    routes.doubt("b")
    routes.doubt("b")
    assert routes.relays("a")
    routes.doubt("c")
    routes.doubt("d")
    assert routes.relays("b")
    assert routes.source("c", ROOT) is None
    routes.doubt("b")  # the new one cannot
    assert routes.relays("c")


def test_a_member_that_is_alone_relays_whatever_it_says() -> None:
    routes = Routes("home")
    routes.join("a", "s1")
    routes.doubt("a")
    assert routes.relays("a")


EVENTS = st.lists(
    st.tuples(st.sampled_from(["join", "leave", "listens", "doubt"]), st.integers(0, 5), st.integers(0, 2)), max_size=60
)


@given(EVENTS)
def test_there_is_one_relay_in_each_other_supernode_and_no_source_lies_in_a_third(
    events: list[tuple[str, int, int]],
) -> None:
    routes, where = Routes("s0"), dict[str, str]()
    for event, number, place in events:
        member = f"m{number}"
        if event == "join":
            routes.join(member, f"s{place}")
            where[member] = f"s{place}"
        elif event == "leave":
            routes.leave(member)
            where.pop(member, None)
        elif event == "listens" and member in where:
            routes.listens(member, at(where[member]))
        elif event == "doubt":
            routes.doubt(member)
        for supernode in {"s1", "s2"} & set(where.values()):
            assert sum(routes.relays(one) for one, at in where.items() if at == supernode) == 1
        for one, supernode in where.items():
            source = routes.source(one, ROOT)
            assert source is None or source.endpoint.host == ("root" if supernode == "s0" else supernode)
