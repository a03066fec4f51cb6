"""Tasks and calls override the settings of their app, under the same rules."""

from __future__ import annotations

import pytest
from celery import Celery
from hypothesis import given, strategies as st

from celery_lease.core.policy import Mode, OnLost
from celery_lease.settings import (
    SETTINGS,
    LeaseConfigError,
    call_lease,
    load,
    task_lease,
)
from unit.wrong_settings import WRONG


def app_with(**conf: object) -> Celery:
    """Return an app that has nothing but these settings."""
    app = Celery("configured", broker="memory://", set_as_current=False)
    app.conf.update(conf)
    return app


def test_a_task_without_options_has_the_apps_policy() -> None:
    """Nothing set, nothing changed."""
    settings = load(app_with(lease_extension=100, lease_enabled=False).conf)

    resolved = task_lease(settings, {})

    assert resolved.policy == settings.policy
    assert not resolved.enabled


def test_a_tasks_option_wins_over_the_app_and_a_calls_over_the_task() -> None:
    """The nearest value wins, for each setting by itself."""
    settings = load(app_with(lease_extension=100, lease_mode="daemon", lease_on_lost="abort").conf)
    task = task_lease(settings, {"lease_extension": 200, "lease_on_lost": "continue"})
    call = call_lease(task, {"lease_extension": 400, "lease_enabled": False})

    assert (task.policy.extension, task.policy.mode, task.enabled) == (200.0, Mode.DAEMON, True)
    assert call.policy.extension == 400.0
    assert call.policy.on_lost is OnLost.CONTINUE
    assert not call.enabled


def test_scaling_follows_the_extension_that_holds_in_the_end() -> None:
    """What nobody set follows the nearest extension, down and up again."""
    settings = load(app_with(lease_extension=50).conf)
    task = task_lease(settings, {"lease_extension": 10})
    call = call_lease(task, {"lease_extension": 400})

    assert [settings.policy.interval, task.policy.interval, call.policy.interval] == [10, 2, 60]
    assert [task.policy.shutdown_timeout, call.policy.shutdown_timeout] == [10, 30]


def test_an_explicit_none_of_a_task_wins_over_the_apps_number() -> None:
    """None is a value of the watchdog's threshold, not the absence of one."""
    settings = load(app_with(lease_watchdog_threshold=30).conf)

    task = task_lease(settings, {"lease_watchdog_threshold": None})
    assert task.policy.watchdog_threshold is None


def test_a_call_without_overrides_costs_nothing() -> None:
    """What was resolved for the task is used as it is."""
    task = task_lease(load({}), {"lease_extension": 10})

    assert call_lease(task, {}) is task


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [row for row in WRONG if {s.name: s.task for s in SETTINGS}[row[0]]],
    ids=lambda part: repr(part)[:40],
)
def test_a_task_obeys_the_rules_of_the_app(name: str, value: object, rule: str) -> None:
    """A wrong option is refused where the task is declared, and the task is named."""
    with pytest.raises(LeaseConfigError) as caught:
        task_lease(load({}), {name: value}, "video.transcode")

    line = str(caught.value)
    assert line.startswith(f"wrong lease setting of task 'video.transcode': {name} = ")
    assert rule in line


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [row for row in WRONG if {s.name: s.call for s in SETTINGS}[row[0]]],
    ids=lambda part: repr(part)[:40],
)
def test_a_call_obeys_the_rules_of_the_app(name: str, value: object, rule: str) -> None:
    """A wrong keyword fails in the caller, who is told which call it was."""
    task = task_lease(load({}), {})

    with pytest.raises(LeaseConfigError) as caught:
        call_lease(task, {name: value}, "video.transcode")

    line = str(caught.value)
    assert line.startswith(f"wrong lease setting of call of task 'video.transcode': {name} = ")
    assert rule in line


def test_a_call_that_conflicts_with_the_app_is_told_who_set_the_other_value() -> None:
    """The caller did not write the interval, and learns where to look."""
    task = task_lease(load({"lease_interval": 60}), {})

    with pytest.raises(LeaseConfigError) as caught:
        call_lease(task, {"lease_extension": 100}, "t")

    assert "lease_interval = 60: must be less than half of lease_extension (100)" in str(
        caught.value
    )
    assert "(lease_interval is set by the app or the task)" in str(caught.value)


def test_a_task_with_leases_shorter_than_the_apps_sweeps_is_refused() -> None:
    """Only if the app chose the sweeps' interval: left alone, it follows the tasks."""
    with pytest.raises(LeaseConfigError, match=r"lease_reaper_interval = 10: .*set by the app\)"):
        task_lease(load({"lease_reaper_interval": 10}), {"lease_extension": 5})
    assert task_lease(load({}), {"lease_extension": 5}).policy.extension == 5.0


@pytest.mark.parametrize(
    "name", [setting.name for setting in SETTINGS if not setting.task], ids=str
)
def test_a_setting_of_the_app_is_no_task_option(name: str) -> None:
    """It would be ignored, so it is refused."""
    with pytest.raises(LeaseConfigError, match=f"{name} = 5: is a setting of the app, not of a"):
        task_lease(load({}), {name: 5})


@pytest.mark.parametrize(
    "name", [setting.name for setting in SETTINGS if setting.task and not setting.call], ids=str
)
def test_a_setting_of_the_task_is_no_keyword_of_a_call(name: str) -> None:
    """The message says where it belongs."""
    with pytest.raises(
        LeaseConfigError, match="is a setting of the app or the task, not of a call"
    ):
        call_lease(task_lease(load({}), {}), {name: True})


def test_misspelt_options_and_keywords_get_the_nearest_name_that_is_allowed_there() -> None:
    """A suggestion that would be refused in turn is none."""
    task = task_lease(load({}), {})

    with pytest.raises(LeaseConfigError, match="did you mean lease_extension"):
        task_lease(load({}), {"lease_extensoin": 5})
    with pytest.raises(LeaseConfigError, match="known are") as caught:
        call_lease(task, {"lease_reaper_intervals_": 5, "lease_health_prt": 5})
    assert "did you mean lease_health_port" not in str(caught.value)


def test_a_tasks_faults_are_listed_in_one_go() -> None:
    """Names, values and relations together."""
    with pytest.raises(LeaseConfigError) as caught:
        task_lease(
            load({}),
            {"lease_extension": 10, "lease_interval": 9, "lease_mode": 1, "lease_modus": 1},
            "t",
        )

    assert str(caught.value).startswith("3 wrong lease settings of task 't':\n")
    assert {fault.name for fault in caught.value.faults} == {
        "lease_interval",
        "lease_mode",
        "lease_modus",
    }


number_or_not = st.one_of(
    st.floats(),
    st.floats(min_value=0.01, max_value=500),
    st.integers(min_value=-1, max_value=500),
    st.sampled_from([None, True, "5", 10**400]),
)
durations = st.sampled_from(
    ["lease_extension", "lease_interval", "lease_max_duration", "lease_shutdown_timeout"]
)


@given(
    st.dictionaries(durations | st.just("lease_reaper_interval"), number_or_not, max_size=3),
    st.dictionaries(durations, number_or_not, max_size=2),
    st.dictionaries(durations, number_or_not, max_size=2),
)
def test_whatever_app_task_and_call_set_either_it_is_refused_or_every_rule_holds(
    app: dict[str, object], task: dict[str, object], call: dict[str, object]
) -> None:
    """No mixture of layers gets past the rules."""
    try:
        settings = load(app)
        declared = task_lease(settings, task)
        called = call_lease(
            declared, {name: call[name] for name in call if name != "lease_shutdown_timeout"}
        )
    except LeaseConfigError as error:
        assert error.faults  # noqa: PT017
        return
    assert settings.reaper_interval < settings.policy.extension
    extensions = [declared.policy.extension, called.policy.extension]
    assert settings.reaper_interval_for(extensions) < min(extensions)
    for policy in (settings.policy, declared.policy, called.policy):
        assert 0 < policy.interval < policy.extension / 2
        assert 0 < policy.shutdown_timeout <= policy.extension
