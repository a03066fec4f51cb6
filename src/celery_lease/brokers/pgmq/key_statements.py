"""The SQL of exclusive keys: one script that decides about messages, and one that wakes.

A row of the table is a message that holds its key, or one that is parked for it (``place`` is set).
A holder counts as long as the row of its queue is still that delivery and hidden: nothing is
extended here, and a key is free as soon as its holder's lease has ended, in whatever way.

**A parked message** stays a row of its queue, hidden for the visibility timeout, with the
``read_ct`` that it had before this delivery and no ``last_read_at``: so no former holder knows it,
and no statement of a lease changes it. If nobody looks after it, it becomes visible by itself.

**Locks.** A count is right only if nobody else counts at the same time, so each decision about a
key, and each wake, holds the advisory lock of that key. Whoever holds one waits for no row: rows
that a transaction needs are locked before, or skipped if another one has them. Several locks are
taken in the order of their numbers, and no wait for one is long. Each script is sent as one text,
and the server runs it as one transaction without the client: a worker that is stopped in the middle
holds nothing.
"""

from __future__ import annotations

from psycopg import sql

from celery_lease.brokers.pgmq.statements import headers
from celery_lease.brokers.pgmq.tables import grant, making, rights

TABLE = "pgmq.celery_lease_keys"
#: Keys in a row's ``headers``: the place in the line of its key, and the id of the task that waits
#: instead of it.
PLACE, REPLACED = "celery_lease_place", "celery_lease_replaced"
#: A place is a message's order, 0 if it was delivered before and else 1, times this, plus its
#: token.
ORDER = 10**16
#: Most seconds between two looks at a parked message; keys looked at in one transaction, and
#: messages of each.
LOOK, PIECE, MESSAGES = 60.0, 50, 250
#: Longest wait for a lock, so that no script outlives the wait for its answer.
LOCK_TIMEOUT = "2s"
#: Settings, for one transaction: what a script is asked, and its answers.
ASKS, ANSWERS = "celery_lease.asks", "celery_lease.answers"

_LOOK_INDEX = f"IF NOT EXISTS celery_lease_keys_look ON {TABLE} (look_at) WHERE place IS NOT NULL"
#: Creates the table, for the error and the documentation, too.
CREATE = (
    f"CREATE TABLE IF NOT EXISTS {TABLE} (queue text, msg_id bigint, prefix text NOT NULL, "
    "key text NOT NULL, key_limit int NOT NULL, place bigint, since timestamptz NOT NULL, "
    "look_at timestamptz, expires float8, read_ct int, read_at timestamptz, name text, task text, "
    "id text, worker text, deliveries int, losses int, PRIMARY KEY (queue, msg_id)); "
    f"CREATE INDEX IF NOT EXISTS celery_lease_keys_line ON {TABLE} (prefix, key, place); "
    f"CREATE INDEX {_LOOK_INDEX}"
)
#: Lets another user use it.
GRANT = grant(TABLE)
MAKE = making(TABLE, CREATE)
RIGHTS = rights(TABLE)
#: The index that a table of an older version lacks; the statement for a table in use, which no
#: transaction can have; and those of a worker, which lock the table for a second at the most.
INDEX = f"{TABLE}_look"
ADD_INDEX = f"CREATE INDEX CONCURRENTLY {_LOOK_INDEX}"
MAKE_INDEX = (
    sql.SQL("SET LOCAL statement_timeout = '1s'"),
    making(INDEX, f"CREATE INDEX {_LOOK_INDEX}"),
)

#: In these texts ``%I`` is the table of a queue. A delivery is $1, $2, $3: id, count, time read.
_THEIRS = "msg_id = $1 AND read_ct = $2 AND last_read_at = $3 AND vt > ''epoch''"
_PARKED = "msg_id = $1 AND last_read_at IS NULL AND vt > clock_timestamp()"
_TABLE_OF = "to_regclass(format('pgmq.%I', {source})) IS NOT NULL"

_UNTIL_LOOK = f"make_interval(secs => least({LOOK}, me.hides / 4))"

#: One holder of a key; continues the loop if it does not count.
_HOLDER = f"""
            hidden_until := NULL;
            source := 'q_' || lower(other.queue);
            IF {_TABLE_OF.format(source="source")} THEN
                EXECUTE format('SELECT vt FROM pgmq.%I WHERE {_THEIRS}', source)
                    INTO hidden_until USING other.msg_id, other.read_ct, other.read_at;
            END IF;
            IF hidden_until IS NULL THEN
                DELETE FROM {TABLE} WHERE queue = other.queue AND msg_id = other.msg_id;
                CONTINUE;
            END IF;"""  # noqa: S608  (ours)
#: Ends the lease of a holder that has expired, unless it is being extended or read just now.
_OUST = f"""
                EXECUTE format('UPDATE pgmq.%I SET vt = ''epoch'' WHERE msg_id = ANY (ARRAY(
                    SELECT msg_id FROM pgmq.%1$I WHERE {_THEIRS} AND vt <= clock_timestamp()
                    FOR UPDATE SKIP LOCKED))', source)
                    USING other.msg_id, other.read_ct, other.read_at;
                GET DIAGNOSTICS changed = ROW_COUNT;
                IF changed = 1 THEN
                    DELETE FROM {TABLE} WHERE queue = other.queue AND msg_id = other.msg_id;
                    CONTINUE;
                END IF;"""  # noqa: S608  (ours)
_IS_PARKED = f"""
            is_parked := NULL;
            source := 'q_' || lower(other.queue);
            IF {_TABLE_OF.format(source="source")} THEN
                EXECUTE format('SELECT true FROM pgmq.%I WHERE {_PARKED}', source)
                    INTO is_parked USING other.msg_id;
            END IF;
            IF is_parked IS NOT TRUE THEN
                DELETE FROM {TABLE} WHERE queue = other.queue AND msg_id = other.msg_id;
                CONTINUE;
            END IF;"""  # noqa: S608  (ours)


#: The parked of the messages ``ids``. The subselect hides their number from the planner, which
#: would rather read a line, or a table, than look up 250 rows.
_OF_THESE = "queue = me.queue AND msg_id = ANY (ARRAY(SELECT unnest(me.ids))) AND place IS NOT NULL"


def _parked(order: str = "") -> str:
    """Return the statement that finds the first or the last of a line, or ends the loop.

    One at a time: a loop over them may read and sort the whole line first.
    """
    return f"""
            SELECT * INTO other FROM {TABLE} WHERE prefix = me.prefix AND key = me.key
                AND place IS NOT NULL ORDER BY place {order} LIMIT 1;
            EXIT WHEN NOT FOUND;"""  # noqa: S608  (ours)


def _unpark(row: str, more: str = "", using: str = "") -> str:
    """Return the statements that return a parked message to its queue."""
    return f"""
            EXECUTE format('UPDATE pgmq.%I t SET vt = ''epoch''{more} WHERE msg_id = ANY (ARRAY(
                SELECT msg_id FROM pgmq.%1$I WHERE {_PARKED} FOR UPDATE SKIP LOCKED))',
                'q_' || lower({row}.queue)) USING {row}.msg_id{using};
            DELETE FROM {TABLE} WHERE queue = {row}.queue AND msg_id = {row}.msg_id;"""  # noqa: S608


def _put(place: str, since: str) -> str:
    """Return the statement that enters the asked message into the table."""
    return f"""
            INSERT INTO {TABLE} VALUES (me.queue, me.msg_id, me.prefix, me.key, me.key_limit,
                {place}, {since}, now() + {_UNTIL_LOOK}, me.expires, me.read_ct,
                me.read_at, me.name, me.task, me.id, me.worker, me.deliveries, me.losses)
            ON CONFLICT (queue, msg_id) DO UPDATE SET prefix = excluded.prefix, key = excluded.key,
                key_limit = excluded.key_limit, place = excluded.place, since = excluded.since,
                look_at = excluded.look_at, expires = excluded.expires, read_ct = excluded.read_ct,
                read_at = excluded.read_at, name = excluded.name, task = excluded.task,
                id = excluded.id, worker = excluded.worker, deliveries = excluded.deliveries,
                losses = excluded.losses;"""  # noqa: S608  (ours)


_MARK = ", headers = headers || jsonb_build_object($2, $3)"
_MARKED = ", {replaced}::text, coalesce(me.id, '')"
_LOCK = f"PERFORM pg_advisory_xact_lock(hashtext('{TABLE}'), hashtext(me.prefix || me.key));"
_ASKED = f"""jsonb_to_recordset(current_setting('{ASKS}')::jsonb) AS asked (number int, queue text,
    msg_id bigint, read_ct int, read_at timestamptz, takes bool, prefix text, key text,
    key_limit int, busy text, place bigint, expires float8, hides float8, name text, task text,
    id text, worker text, deliveries int, losses int)"""

#: Decides about messages whose leases are the asker's. Each answer is a number, a verdict, and the
#: id of the task that is why: '' (the key is free, and not taken), 'held' (it is taken, and the
#: beginning of the task noted), 'lost' (nothing was changed), 'parked' (the lease is over),
#: 'dropped' or 'replaced' (it stays leased).
DECIDE = sql.SQL(f"""
DO $script$
DECLARE
    me record; other record; last {TABLE}%ROWTYPE; source text; own text;
    hidden_until timestamptz; is_mine bool; is_parked bool; is_same bool;
    held int; changed int; verdict text; because text; answers jsonb := '[]'::jsonb;
BEGIN
    FOR me IN SELECT * FROM {_ASKED} ORDER BY queue, msg_id LOOP
        own := 'q_' || lower(me.queue);
        IF {_TABLE_OF.format(source="own")} THEN
            EXECUTE format('SELECT FROM pgmq.%I WHERE msg_id = $1 FOR UPDATE', own)
                USING me.msg_id;
        END IF;
    END LOOP;
    FOR me IN SELECT * FROM {_ASKED} ORDER BY hashtext(prefix || key), number LOOP
        {_LOCK}
        own := 'q_' || lower(me.queue);
        verdict := 'lost'; because := NULL; is_mine := NULL;
        IF {_TABLE_OF.format(source="own")} THEN
            EXECUTE format('SELECT true FROM pgmq.%I WHERE {_THEIRS} AND vt > clock_timestamp()',
                own) INTO is_mine USING me.msg_id, me.read_ct, me.read_at;
        END IF;
        IF is_mine THEN
            verdict := NULL; held := 0; is_same := false; last := NULL; is_parked := NULL;
            DELETE FROM {TABLE} WHERE queue = me.queue AND msg_id = me.msg_id
                AND place IS NOT NULL;
            FOR other IN SELECT * FROM {TABLE} WHERE prefix = me.prefix AND key = me.key
                AND place IS NULL ORDER BY since
            LOOP
                IF (other.queue, other.msg_id) = (me.queue, me.msg_id) THEN
                    IF (other.read_ct, other.read_at) = (me.read_ct, me.read_at) THEN
                        verdict := 'held';
                    END IF;
                    CONTINUE;
                END IF;
                {_HOLDER}
                IF hidden_until <= clock_timestamp() THEN
                    CONTINUE WHEN NOT me.takes;
                    {_OUST}
                END IF;
                held := held + 1;
                because := coalesce(because, other.id);
                is_same := is_same OR other.id = me.id;
            END LOOP;
            IF verdict = 'held' THEN
                NULL;
            ELSIF held < me.key_limit THEN
                verdict := '';
                IF me.takes THEN
                    verdict := 'held';
                    {_put("NULL", "clock_timestamp()")}
                    EXECUTE format($$UPDATE pgmq.%I t SET headers = ({{headers}} - {{waits}})
                        || jsonb_build_object({{returns}}, {{returned}}) WHERE msg_id = $1$$, own)
                        USING me.msg_id;
                END IF;
            ELSIF me.busy = 'drop' AND NOT is_same THEN
                verdict := 'dropped';
            ELSE
                IF me.busy = 'replace' THEN
                    LOOP
                        {_parked("DESC")}
                        {_IS_PARKED}
                        last := other;
                        EXIT;
                    END LOOP;
                END IF;
                IF last.place > me.place THEN
                    verdict := 'replaced'; because := last.id;
                ELSE
                    verdict := 'parked';
                    EXECUTE format($$UPDATE pgmq.%I t SET read_ct = read_ct - 1,
                        last_read_at = NULL, vt = clock_timestamp() + make_interval(secs => $2),
                        headers = ({{headers}} - {{waits}})
                        || jsonb_build_object({{returns}}, {{returned}}, {{place}}, $3)
                        WHERE msg_id = $1$$, own) USING me.msg_id, me.hides, me.place;
                    {_put("me.place", f"to_timestamp((me.place % {ORDER}) / 1e6)")}
                    IF last.place IS NOT NULL THEN
                        {_unpark("last", _MARK, _MARKED)}
                    END IF;
                END IF;
            END IF;
        END IF;
        answers := answers || jsonb_build_array(
            jsonb_build_array(me.number, verdict, coalesce(because, '')));
    END LOOP;
    PERFORM set_config('{ANSWERS}', answers::text, true);
END $script$;
SELECT current_setting('{ANSWERS}')""").format(  # noqa: S608  (ours)
    **headers(), place=sql.Literal(PLACE), replaced=sql.Literal(REPLACED)
)

#: Wakes the first in the lines of keys, as many as are free, but at most ``wakes`` of each. Of the
#: messages ``ids`` of a ``queue`` it also removes what is no longer parked, hides the others for
#: longer, and wakes those whose time is over. A failure changes nothing, above all not what this
#: is sent with.
WAKE = sql.SQL(f"""
DO $script$
DECLARE
    me record; other record; late record; source text; hidden_until timestamptz;
    is_parked bool; held int; woken int;
BEGIN
    IF to_regclass('{TABLE}') IS NULL THEN RETURN; END IF;
    FOR me IN SELECT * FROM jsonb_to_recordset(current_setting('{ASKS}')::jsonb)
        AS asked (prefix text, key text, wakes int, hides float8, queue text, ids bigint[])
        ORDER BY hashtext(prefix || key)
    LOOP
        {_LOCK}
        held := 0; woken := 0;
        FOR other IN SELECT * FROM {TABLE} WHERE prefix = me.prefix AND key = me.key
            AND place IS NULL
        LOOP
            {_HOLDER}
            held := held + (hidden_until > clock_timestamp())::int;
        END LOOP;
        IF me.ids IS NOT NULL THEN
            source := 'q_' || lower(me.queue);
            IF {_TABLE_OF.format(source="source")} THEN
                EXECUTE format('UPDATE pgmq.%I SET
                    vt = clock_timestamp() + make_interval(secs => $2)
                    WHERE msg_id = ANY (ARRAY(SELECT msg_id FROM pgmq.%1$I
                        WHERE msg_id = ANY (ARRAY(SELECT unnest($1))) AND last_read_at IS NULL
                        AND vt > clock_timestamp()
                        AND vt < clock_timestamp() + make_interval(secs => $2 / 2)
                        FOR UPDATE SKIP LOCKED))', source) USING me.ids, me.hides;
                EXECUTE format('DELETE FROM {TABLE} k WHERE queue = $1
                    AND msg_id = ANY (ARRAY(SELECT unnest($2))) AND place IS NOT NULL
                    AND NOT EXISTS (SELECT FROM pgmq.%I t
                        WHERE t.msg_id = k.msg_id AND t.last_read_at IS NULL
                        AND t.vt > clock_timestamp())', source) USING me.queue, me.ids;
            END IF;
            UPDATE {TABLE} SET look_at = now() + {_UNTIL_LOOK} WHERE {_OF_THESE};
            FOR late IN SELECT * FROM {TABLE} WHERE {_OF_THESE}
                AND expires <= extract(epoch FROM clock_timestamp())
            LOOP
                {_unpark("late")}
            END LOOP;
        END IF;
        LOOP
            {_parked()}
            {_IS_PARKED}
            EXIT WHEN woken >= me.wakes OR held + woken >= other.key_limit;
            {_unpark("other")}
            woken := woken + 1;
        END LOOP;
    END LOOP;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'celery-lease: keys not looked after: %', SQLERRM;
END $script$""")  # noqa: S608  (ours)


def asked(text: str) -> sql.Composed:
    """Return the statement that asks the script after it, in JSON, for one transaction."""
    ask = f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'; SET LOCAL {ASKS} = {{}}"
    return sql.SQL(ask).format(sql.Literal(text))
