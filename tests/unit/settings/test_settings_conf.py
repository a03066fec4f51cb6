"""Settings are read from wherever Celery reads its own, and what it would ignore is found."""

from __future__ import annotations

import types

import pytest
from celery import Celery

from celery_lease.core.policy import LeasePolicy, Mode
from celery_lease.settings import (
    LeaseConfigError,
    Settings,
    load,
)


def app_with(**conf: object) -> Celery:
    """Return an app that has nothing but these settings."""
    app = Celery("configured", broker="memory://", set_as_current=False)
    app.conf.update(conf)
    return app


def module(**names: object) -> types.ModuleType:
    """Return a configuration module that holds these names."""
    made = types.ModuleType("celeryconfig")
    vars(made).update(names)
    return made


def django(**names: object) -> Celery:
    """Return an app configured the way that Celery's Django documentation shows."""
    app = Celery("django", broker="memory://", set_as_current=False)
    app.config_from_object(module(**names), namespace="CELERY")
    return app


def test_a_configuration_still_pending_is_read() -> None:
    """Loading may be the first that anybody asks of the configuration."""
    app = Celery("lazy", broker="memory://", set_as_current=False)
    app.config_from_object(module(lease_extension=90, task_acks_late=True))

    assert load(app.conf).policy.extension == 90.0


def test_typos_in_a_configuration_module_are_found() -> None:
    """Celery keeps unknown names of the module, and they are looked at."""
    app = Celery("module", broker="memory://", set_as_current=False)
    app.config_from_object(module(lease_extensoin=90))

    with pytest.raises(LeaseConfigError, match="did you mean lease_extension"):
        load(app.conf)


def test_typos_set_on_the_app_are_found() -> None:
    """Attributes of app.conf and keywords of the app are settings like any other."""
    app = Celery("attribute", broker="memory://", set_as_current=False, lease_mod="daemon")
    app.conf.lease_intervall = 5

    with pytest.raises(LeaseConfigError) as caught:
        load(app.conf)
    assert {fault.name for fault in caught.value.faults} == {"lease_mod", "lease_intervall"}


def test_what_is_set_on_the_app_wins_over_its_module() -> None:
    """Sources keep the order that Celery gives them."""
    app = Celery("both", broker="memory://", set_as_current=False)
    app.config_from_object(module(lease_extension=90, lease_mode="daemon"))
    app.conf.update(lease_extension=120)

    settings = load(app.conf)

    assert settings.policy.extension == 120.0
    assert settings.explicit == {"lease_extension": 120, "lease_mode": "daemon"}


def test_what_a_module_imports_and_defines_is_no_setting() -> None:
    """A helper of the configuration may be called lease_something."""
    app = Celery("helpers", broker="memory://", set_as_current=False)
    app.config_from_object(
        module(lease_module=types, lease_for=lambda: 5, lease_class=Settings, LEASE_SECONDS=70)
    )

    assert load(app.conf).warnings == ()


def test_a_function_as_a_known_setting_is_a_fault() -> None:
    """Only unknown names are forgiven."""
    with pytest.raises(LeaseConfigError, match="lease_extension = <function"):
        load(app_with(lease_extension=lambda: 5).conf)


def test_djangos_namespace_is_read() -> None:
    """CELERY_LEASE_* in Django's settings are the lease settings."""
    settings = load(django(CELERY_LEASE_EXTENSION=50, CELERY_LEASE_MODE="daemon", DEBUG=True).conf)

    assert settings.policy == LeasePolicy(
        extension=50, interval=10, shutdown_timeout=30, mode=Mode.DAEMON
    )
    assert settings.explicit == {"lease_extension": 50, "lease_mode": "daemon"}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("CELERY_LEASE_EXTENSOIN", "CELERY_LEASE_EXTENSION"),
        ("CELERY_lease_extension", "CELERY_LEASE_EXTENSION"),
        ("lease_extensoin", "lease_extension"),
    ],
)
def test_typos_in_djangos_namespace_are_found(name: str, meant: str) -> None:
    """The name in the error is the one in the file, and so is the suggestion."""
    with pytest.raises(LeaseConfigError, match=f"{name} = 9: .*did you mean {meant}"):
        load(django(**{name: 9}).conf)


def test_faults_in_djangos_namespace_speak_its_names() -> None:
    """Somebody who searches the settings file for the names finds them."""
    with pytest.raises(LeaseConfigError) as caught:
        load(django(CELERY_LEASE_EXTENSION=50, CELERY_LEASE_INTERVAL=30).conf)

    line = str(caught.value)
    assert "CELERY_LEASE_INTERVAL = 30: must be less than half of CELERY_LEASE_EXTENSION" in line
    assert "lease_" not in line.partition(": ")[2]


def test_a_plain_name_beside_a_namespace_keeps_its_spelling_in_faults() -> None:
    """What was set as app.conf.lease_extension is reported as that."""
    app = django(CELERY_LEASE_MODE="daemon")
    app.conf.lease_extension = -1

    with pytest.raises(LeaseConfigError, match="the app: lease_extension = -1"):
        load(app.conf)


def test_a_lower_case_namespace_works_like_djangos() -> None:
    """Celery writes a lower-case namespace's settings in lower case."""
    app = Celery("lower", broker="memory://", set_as_current=False)
    app.config_from_object(module(work_lease_extension=50, work_lease_mod=1), namespace="work")

    with pytest.raises(LeaseConfigError, match=r"work_lease_mod = 1: .* mean work_lease_mode"):
        load(app.conf)


def test_djangos_names_without_its_namespace_are_a_fault() -> None:
    """Celery would ignore them, and the worker would run with defaults."""
    app = Celery("forgotten", broker="memory://", set_as_current=False)
    app.config_from_object(module(CELERY_LEASE_EXTENSION=50))

    with pytest.raises(LeaseConfigError) as caught:
        load(app.conf)
    assert "CELERY_LEASE_EXTENSION = 50: is not read" in str(caught.value)
    assert "write lease_extension, or call config_from_object(..., namespace='CELERY')" in str(
        caught.value
    )


def test_a_settings_name_without_its_prefix_is_only_a_warning() -> None:
    """LEASE_EXTENSION in Django's settings may belong to somebody else."""
    (line,) = load(django(LEASE_EXTENSION=50).conf).warnings

    assert line.startswith("LEASE_EXTENSION is not read")
    assert line.endswith("write CELERY_LEASE_EXTENSION")
    assert load(django(LEASE_EXTENSION=50, CELERY_LEASE_EXTENSION=50).conf).warnings == ()
