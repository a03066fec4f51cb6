"""A lease's policy is sound, or every rule that it breaks is named."""

from __future__ import annotations

import pickle
from dataclasses import fields
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from celery_lease.core.faults import Fault, shown
from celery_lease.core.policy import LeasePolicy, Mode, OnLost, warnings_of
from celery_lease.settings import SETTINGS, resolve

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULTS = {field.name: field.default for field in fields(LeasePolicy)}


def settings_of(values: Mapping[str, object]) -> dict[str, object]:
    """Return the values of a policy's fields by their settings."""
    return {f"lease_{name}": value for name, value in values.items()}


def faults_of(values: Mapping[str, object]) -> list[Fault]:
    """Return the faults of the values of a policy's fields."""
    return resolve.faults_of(settings_of(values))


def policy_from(values: Mapping[str, object]) -> LeasePolicy:
    """Return the policy of values without faults."""
    policy: LeasePolicy = resolve.values_of(settings_of(values))["policy"]
    return policy


def reaper_fault(interval: object, extension: object) -> Fault | None:
    """Return the fault of an interval between sweeps that is too long for an extension."""
    values = {"reaper_interval": interval, "extension": extension}
    faults = [each for each in faults_of(values) if "less than lease_extension" in each.rule]
    return faults[0] if faults else None


def test_every_field_says_what_it_takes() -> None:
    """A field without accepted values would go into a policy unchecked."""
    assert set(DEFAULTS) < {setting.field for setting in SETTINGS}


def test_the_defaults_break_no_rule() -> None:
    """Somebody who sets nothing, or sets each default on purpose, gets no fault and no warning."""
    assert faults_of({}) == []
    assert faults_of(DEFAULTS) == []
    assert warnings_of(LeasePolicy()) == []


def test_values_left_alone_are_the_defaults() -> None:
    """Nothing set is the policy that the documentation promises."""
    assert policy_from({}) == LeasePolicy()


@pytest.mark.parametrize(
    ("extension", "interval", "shutdown_timeout"),
    [(300, 60, 30), (3600, 60, 30), (100, 20, 30), (30, 6, 30), (10, 2, 10), (0.5, 0.1, 0.5)],
)
def test_what_is_left_alone_follows_a_short_extension(
    extension: float, interval: float, shutdown_timeout: float
) -> None:
    """A short extension shortens the interval and the shutdown timeout, a long one does not."""
    policy = policy_from({"extension": extension})

    assert policy.interval == pytest.approx(interval)
    assert policy.shutdown_timeout == shutdown_timeout
    assert faults_of({"extension": extension}) == []
    assert warnings_of(policy) == []


def test_what_is_set_on_purpose_does_not_follow_the_extension() -> None:
    """A set interval stays as it is."""
    policy = policy_from({"extension": 100, "interval": 1, "shutdown_timeout": 99})

    assert (policy.interval, policy.shutdown_timeout) == (1.0, 99.0)


def test_values_get_the_types_of_the_policy() -> None:
    """Integers become seconds as floats, words become members of their enumeration."""
    policy = policy_from({"extension": 90, "mode": "daemon", "on_lost": "continue"})

    assert isinstance(policy.extension, float)
    assert policy.mode is Mode.DAEMON
    assert policy.on_lost is OnLost.CONTINUE


def test_members_of_the_enumerations_are_accepted_like_their_words() -> None:
    """Code may write Mode.OBSERVE where a configuration file writes "observe"."""
    assert faults_of({"mode": Mode.OBSERVE}) == []
    assert policy_from({"mode": Mode.OBSERVE}).mode is Mode.OBSERVE


def test_a_foreign_enumerations_equal_word_is_refused() -> None:
    """A word that compares equal but converts to another one must not slip through."""

    class Theirs(str, Enum):  # noqa: UP042 - a StrEnum would convert
        DAEMON = "daemon"

    (fault,) = faults_of({"mode": Theirs.DAEMON})

    assert "must be one of 'heartbeat', 'daemon', 'observe'" in str(fault)


@pytest.mark.parametrize("interval", [50, 50.0, 51, 100, 200])
def test_an_interval_of_half_the_extension_is_a_fault(interval: float) -> None:
    """Two extensions must fit into one lease."""
    (fault,) = faults_of({"extension": 100, "interval": interval})

    assert fault.name == "lease_interval"
    assert fault.value == interval
    assert "less than half of lease_extension (100)" in fault.rule
    assert "set lease_interval to 20" in fault.hint


@pytest.mark.parametrize(("interval", "warned"), [(33, False), (34, True), (49.9, True)])
def test_an_interval_above_a_third_of_the_extension_is_only_a_warning(
    interval: float, *, warned: bool
) -> None:
    """Between a third and a half little time is left for a second try: allowed, but said."""
    values = {"extension": 100, "interval": interval}

    assert faults_of(values) == []
    warnings = warnings_of(policy_from(values))
    assert [("lease_interval" in line, "a third" in line) for line in warnings] == (
        [(True, True)] if warned else []
    )


def test_a_shutdown_timeout_above_the_extension_is_a_fault() -> None:
    """A worker must not wait for tasks longer than their leases last."""
    (fault,) = faults_of({"extension": 20, "shutdown_timeout": 20.5})

    assert str(fault).startswith("lease_shutdown_timeout = 20.5: must be at most lease_extension")
    assert faults_of({"extension": 20, "shutdown_timeout": 20}) == []


def test_a_max_duration_below_the_extension_is_only_a_warning() -> None:
    """It has a clear meaning, the task is aborted early, but is seldom meant."""
    values = {"extension": 100, "max_duration": 99}

    assert faults_of(values) == []
    assert [line.split(" = ")[0] for line in warnings_of(policy_from(values))] == [
        "lease_max_duration"
    ]


@pytest.mark.parametrize(("mode", "warned"), [("heartbeat", 1), ("daemon", 0), ("observe", 0)])
def test_a_watchdog_slower_than_the_lease_is_warned_about_where_beats_count(
    mode: str, warned: int
) -> None:
    """In the other modes silence does not end a lease, so the threshold stands for itself."""
    policy = policy_from({"mode": mode, "watchdog_threshold": 301})

    assert sum("lease_watchdog_threshold = 301" in line for line in warnings_of(policy)) == warned


def test_a_wrong_extension_is_not_repeated_by_the_rules_that_compare_with_it() -> None:
    """One mistake is one fault."""
    assert [fault.name for fault in faults_of({"extension": -1, "interval": 60})] == [
        "lease_extension"
    ]


def test_a_wrong_value_does_not_hide_a_broken_relation_between_others() -> None:
    """All faults are found in one go."""
    values = {"extension": 10, "interval": 9, "mode": "demon", "max_deliveries": 0}

    assert {fault.name for fault in faults_of(values)} == {
        "lease_interval",
        "lease_mode",
        "lease_max_deliveries",
    }


@pytest.mark.parametrize(("interval", "broken"), [(99.9, False), (100, True), (101, True)])
def test_sweeps_must_come_more_often_than_leases_expire(interval: float, *, broken: bool) -> None:
    """An expired lease must not wait longer for its sweep than it lasted."""
    assert bool(reaper_fault(interval, 100)) is broken


@pytest.mark.parametrize("pair", [("10", 5), (10, None), (True, 1), (float("nan"), 5)])
def test_a_sweep_is_not_compared_with_values_that_are_wrong_themselves(
    pair: tuple[object, object],
) -> None:
    """Their own faults say enough."""
    assert reaper_fault(*pair) is None


def test_a_fault_is_one_line_with_name_value_rule_and_advice() -> None:
    """The line alone must be enough to correct the configuration."""
    (fault,) = faults_of({"extension": "30"})

    assert str(fault) == (
        "lease_extension = '30': must be a number of seconds from 0.01 to 315360000 (10 years); "
        "strings are not converted: write the value without quotes"
    )


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("interval", timedelta(minutes=1.5), "write 90"),
        ("interval", True, "True and False are not numbers"),
        ("interval", float("inf"), "write the longest time that makes sense"),
        ("interval", -5, "leave it out for the default, 60"),
        ("interval", None, "leave it out for the default, 60"),
        ("mode", "Daemon", "did you mean 'daemon'?"),
        ("mode", "heart_beat", "did you mean 'heartbeat'?"),
        ("mode", 7, "leave it out for the default, heartbeat"),
        ("interruptible", "false", "write the value without quotes"),
        ("interruptible", 1, "leave it out for the default, False"),
    ],
)
def test_a_fault_says_what_to_do(name: str, value: object, advice: str) -> None:
    """The advice fits the mistake that was most likely made."""
    (fault,) = faults_of({name: value})

    assert advice in fault.hint


class Unprintable:
    """What no error message may trip over: no repr, no pickle, no text."""

    def __repr__(self) -> str:
        raise RuntimeError

    def __reduce__(self) -> str:
        raise TypeError


@pytest.mark.parametrize(
    "value",
    [Unprintable(), 10**5000, -(10**5000), "x" * 10**5, "a\nb", [1] * 1000, {"a": object()}],
    ids=["unprintable", "huge", "-huge", "long", "two lines", "list", "dict"],
)
@pytest.mark.parametrize("name", sorted(DEFAULTS))
def test_a_fault_of_any_value_prints_in_one_line_and_pickles(name: str, value: object) -> None:
    """A strange value must not turn its own error message into another error."""
    (fault,) = faults_of({name: value})

    line = str(fault)
    assert "\n" not in line
    assert len(line) < 400
    assert str(pickle.loads(pickle.dumps(fault))) == line  # noqa: S301


def test_a_plain_value_stays_itself_in_its_fault() -> None:
    """Code that catches the error can look at the value."""
    assert Fault("lease_extension", -1, "must be more").value == -1
    assert Fault("lease_extension", [1], "must be a number").value == "[1]"
    assert shown("a  b") == "'a b'"


numbers = st.one_of(
    st.floats(),
    st.floats(min_value=1e-4, max_value=1000),
    st.integers(),
    st.integers(min_value=-2, max_value=400),
    st.sampled_from([True, None, "30", 10**400, 5e-324, 0.0, -0.0]),
)


@given(
    st.dictionaries(
        st.sampled_from(
            ["extension", "interval", "max_duration", "watchdog_threshold", "shutdown_timeout"]
        ),
        numbers,
    )
)
def test_whatever_is_set_either_a_fault_is_named_or_every_rule_holds(
    values: dict[str, object],
) -> None:
    """No combination of numbers makes a policy that breaks a rule, and none raises."""
    if faults_of(values):
        return
    policy = policy_from(values)
    assert 0 < policy.interval < policy.extension / 2
    assert 0 < policy.shutdown_timeout <= policy.extension
    assert 0 < policy.max_duration < float("inf")
    assert policy.watchdog_threshold is None or 0 < policy.watchdog_threshold < float("inf")


@given(st.floats(min_value=0.01, max_value=3e8))
def test_an_extension_alone_never_breaks_a_rule(extension: float) -> None:
    """Scaling keeps the rules for every extension, with a second try in time."""
    assert faults_of({"extension": extension}) == []
    policy = policy_from({"extension": extension})
    assert not [line for line in warnings_of(policy) if "lease_interval" in line]
