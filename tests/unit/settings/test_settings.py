"""The settings of an app are complete and sound, or every mistake in them is named."""

from __future__ import annotations

import pickle
from dataclasses import fields
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import ImproperlyConfigured

from celery_lease.core.errors import LeaseError
from celery_lease.core.policy import LeasePolicy, Mode, OnLost
from celery_lease.settings import (
    SETTINGS,
    LeaseConfigError,
    Selection,
    Settings,
    load,
)
from unit.settings_reference import reference
from unit.wrong_settings import WRONG


def app_with(**conf: object) -> Celery:
    """Return an app that has nothing but these settings."""
    app = Celery("configured", broker="memory://", set_as_current=False)
    app.conf.update(conf)
    return app


def error_of(**conf: object) -> LeaseConfigError:
    """Return the error that these settings of an app raise."""
    with pytest.raises(LeaseConfigError) as caught:
        load(app_with(**conf).conf)
    return caught.value


def test_an_app_that_sets_nothing_has_the_documented_defaults() -> None:
    """The defaults are those of the reference."""
    settings = load(app_with().conf)

    assert settings == Settings(
        enabled=True,
        policy=LeasePolicy(),
        explicit={},
        reaper_interval=10.0,
        dead_letter_queue="{queue}.dead",
        health_host="127.0.0.1",
        health_port=None,
        warnings=(),
    )


def test_every_setting_can_be_set() -> None:
    """No setting is listed without being read."""
    settings = load(
        app_with(
            lease_enabled=False,
            lease_extension=120,
            lease_interval=30,
            lease_mode="observe",
            lease_on_lost="continue",
            lease_max_duration=3600,
            lease_watchdog_threshold=90,
            lease_shutdown_timeout=15,
            lease_interruptible=True,
            lease_hold_reserved=False,
            lease_reaper_interval=5,
            lease_max_deliveries=3,
            lease_dead_letter_queue="graveyard",
            lease_tasks=["reports.*", "!reports.tiny"],
            lease_publish_progress=3,
            lease_health_host="0.0.0.0",  # noqa: S104
            lease_health_port=8080,
        ).conf
    )

    assert settings.policy == LeasePolicy(
        extension=120,
        interval=30,
        max_duration=3600,
        mode=Mode.OBSERVE,
        on_lost=OnLost.CONTINUE,
        watchdog_threshold=90,
        shutdown_timeout=15,
        interruptible=True,
        hold_reserved=False,
        max_deliveries=3,
    )
    assert set(settings.explicit) == {setting.name for setting in SETTINGS if setting.app}
    assert not settings.enabled
    assert settings.reaper_interval == 5.0
    assert settings.dead_letter_queue == "graveyard"
    assert settings.publish_progress == 3.0
    assert settings.tasks == Selection(("reports.*",), ("reports.tiny",))
    assert (settings.health_host, settings.health_port) == ("0.0.0.0", 8080)  # noqa: S104


@pytest.mark.parametrize(("name", "value", "rule"), WRONG, ids=lambda part: repr(part)[:40])
def test_a_wrong_value_is_refused_with_setting_value_and_rule(
    name: str, value: Any, rule: str
) -> None:
    """One clear line names what is wrong, and blames nothing else."""
    error = error_of(**{name: value})

    assert [fault.name for fault in error.faults] == [name]
    line = str(error)
    assert line.startswith(f"wrong lease setting of the app: {name} = ")
    assert rule in line
    assert "\n" not in line
    if value != 10**400:  # too long to print
        assert repr(value) in line


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("lease_extensoin", "lease_extension"),
        ("lease_extention", "lease_extension"),
        ("lease_intervall", "lease_interval"),
        ("lease_enable", "lease_enabled"),
        ("lease_on_loss", "lease_on_lost"),
        ("lease_maxduration", "lease_max_duration"),
        ("lease_watchdog", "lease_watchdog_threshold"),
        ("lease_shutdown_timout", "lease_shutdown_timeout"),
        ("lease_max_delivery", "lease_max_deliveries"),
        ("lease_dead_letters_queue", "lease_dead_letter_queue"),
        ("lease_Mode", "lease_mode"),
        ("lease_healthport", "lease_health_port"),
    ],
)
def test_a_misspelt_name_is_refused_with_the_nearest_one(name: str, meant: str) -> None:
    """Celery ignores names that it does not know, so nobody else would say it."""
    line = str(error_of(**{name: 20}))

    assert f"{name} = 20: is not a lease setting; did you mean {meant}?" in line


def test_a_name_that_is_near_to_none_is_refused_with_the_list_of_all() -> None:
    """Where no guess helps, the whole choice does."""
    line = str(error_of(lease_zzz=1))

    assert all(setting.name in line for setting in SETTINGS)


def test_all_faults_are_listed_in_one_go() -> None:
    """Nobody has to start a worker five times to find five mistakes."""
    error = error_of(
        lease_extension=60,
        lease_interval=45,
        lease_mode="demon",
        lease_shutdown_timeout=61,
        lease_reaper_interval=60,
        lease_max_deliveries=True,
        lease_health_port="80",
        lease_intervall=3,
    )

    headline, *lines = str(error).splitlines()
    assert headline == "7 wrong lease settings of the app:"
    assert sorted(line.split()[0] for line in lines) == [
        "lease_health_port",
        "lease_interval",
        "lease_intervall",
        "lease_max_deliveries",
        "lease_mode",
        "lease_reaper_interval",
        "lease_shutdown_timeout",
    ]


def test_the_error_is_celerys_own_kind_and_survives_pickling() -> None:
    """Celery's handling of configuration errors applies, also across processes."""
    error = error_of(lease_extension=object(), lease_interval=0)
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301

    assert isinstance(error, LeaseError)
    assert isinstance(error, ImproperlyConfigured)
    assert str(copy) == str(error)
    assert copy.faults == error.faults


@pytest.mark.parametrize(
    ("extension", "interval", "shutdown_timeout", "reaper_interval"),
    [(300, 60, 30, 10), (3600, 60, 30, 10), (60, 12, 30, 10), (15, 3, 15, 5), (3, 0.6, 3, 1)],
)
def test_what_an_app_leaves_alone_follows_its_extension(
    extension: float, interval: float, shutdown_timeout: float, reaper_interval: float
) -> None:
    """A short extension alone is a complete configuration."""
    settings = load(app_with(lease_extension=extension).conf)

    assert settings.policy.interval == pytest.approx(interval)
    assert settings.policy.shutdown_timeout == shutdown_timeout
    assert settings.reaper_interval == pytest.approx(reaper_interval)


def test_the_sweeps_follow_the_shortest_extension_of_the_tasks() -> None:
    """A task with short leases is swept for as often as an app with short leases."""
    assert load(app_with().conf).reaper_interval_for([600, 6]) == 2.0
    assert load(app_with().conf).reaper_interval_for([]) == 10.0
    assert load(app_with(lease_reaper_interval=7).conf).reaper_interval_for([6]) == 7.0


def test_a_doubtful_interval_is_a_warning_of_the_app() -> None:
    """The worker can say it at start."""
    (line,) = load(app_with(lease_extension=100, lease_interval=40).conf).warnings

    assert "lease_interval = 40 is above a third of lease_extension (100)" in line


@pytest.mark.parametrize("host", ["localhost", "10.0.0.1", "::1", "::", "worker-1.example.org"])
def test_hosts_are_names_and_addresses_of_both_families(host: str) -> None:
    """What a server can listen on is accepted."""
    assert load(app_with(lease_health_host=host).conf).health_host == host


@pytest.mark.parametrize(
    ("template", "queue"),
    [("{queue}.dead", "video.dead"), ("graveyard", "graveyard"), ("a.{queue}.b", "a.video.b")],
)
def test_the_dead_letter_queue_may_name_its_origin(template: str, queue: str) -> None:
    """Dead letters of all queues can be kept apart or together."""
    settings = load(app_with(lease_dead_letter_queue=template).conf)

    assert settings.dead_letter_queue_of("video") == queue


def test_the_table_covers_the_policy_and_every_setting_accepts_its_own_default() -> None:
    """Defaults are valid, and no field of a policy is out of reach."""
    names = [setting.name for setting in SETTINGS]

    assert len(set(names)) == len(names) == 20
    assert {f"lease_{field.name}" for field in fields(LeasePolicy)} <= set(names)
    assert [s.name for s in SETTINGS if not s.accepted.admits(s.default)] == []


def test_the_calls_keywords_are_the_documented_ones() -> None:
    """What one call may change is small on purpose."""
    assert {setting.name for setting in SETTINGS if setting.call} == {
        "lease_enabled",
        "lease_extension",
        "lease_interval",
        "lease_mode",
        "lease_max_duration",
        "lease_key",
        "lease_key_limit",
        "lease_on_busy",
    }


@pytest.mark.parametrize(
    ("name", "value"), [("lease_key", "x"), ("lease_key_limit", 2), ("lease_on_busy", "drop")]
)
def test_an_exclusive_key_is_no_setting_of_the_app(name: str, value: object) -> None:
    """One key for all tasks cannot be meant."""
    line = str(error_of(**{name: value}))

    assert f"{name} = {value!r}: is an option of a task or a call, not of the app" in line


def test_the_reference_has_a_row_for_every_setting() -> None:
    """The documentation's table is made from the settings themselves."""
    head, rule, *rows = reference().splitlines()

    assert [row.split("`")[1] for row in rows] == [setting.name for setting in SETTINGS]
    assert {line.count(" | ") for line in (head, rule, *rows)} == {4}
    assert "| `lease_mode` | `'heartbeat'` |" in reference()
    assert "| `lease_extension` | `300` |" in reference()
