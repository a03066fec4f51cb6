"""For Django: system checks, the page behind Django's own log-in, and ``manage.py lease``.

Add ``"celery_lease.contrib.django"`` to ``INSTALLED_APPS``. It needs the extra ``django``, and the
page also ``web``.
"""
