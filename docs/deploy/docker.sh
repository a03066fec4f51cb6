#!/bin/sh
# Plain Docker. Seconds follow from lease_shutdown_timeout = 60, see ../shutdown.md.
set -eu

# One worker. --init: a worker as process 1 does not reap orphans.
docker run --detach --name video --restart unless-stopped --init --stop-timeout 75 \
    registry.example.com/proj:1.0 celery -A proj worker -n video@%h -Q video -c 2 -l INFO

# Two workers, stopped one after the other; their parent reaps orphans itself.
docker run --detach --name all-in-one --restart unless-stopped --stop-timeout 150 \
    registry.example.com/proj:1.0 celery -A proj lease group \
    --worker "video:10=-Q video -c 2 -l INFO" --worker "mail:20=-Q mail -c 8 -l INFO"

# For containers that were started without --stop-timeout, whose default is 10 seconds:
docker stop -t 75 video
docker stop -t 150 all-in-one
