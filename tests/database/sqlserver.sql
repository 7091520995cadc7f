-- tables

BEGIN TRANSACTION;

CREATE TABLE timeoutmgr_timeouts_version (
    version_num VARCHAR(32) NOT NULL, 
    CONSTRAINT timeoutmgr_timeouts_version_pkc PRIMARY KEY (version_num)
);

GO

-- Running upgrade  -> 0001

CREATE TABLE timeoutmgr_timeouts (
    endpoint VARBINARY(1020) NOT NULL, 
    due BIGINT NOT NULL, 
    id VARBINARY(1020) NOT NULL, 
    destination VARBINARY(1020) NOT NULL, 
    saga_id VARBINARY(1020) NULL, 
    message_id VARBINARY(1020) NOT NULL, 
    headers NVARCHAR(max) NOT NULL, 
    body VARBINARY(max) NOT NULL, 
    content_type VARBINARY(1020) NOT NULL, 
    content_encoding VARBINARY(1020) NOT NULL, 
    created BIGINT NOT NULL, 
    version INTEGER NOT NULL, 
    attempts INTEGER NOT NULL, 
    next_try BIGINT NOT NULL DEFAULT '0', 
    maybe_sent SMALLINT NOT NULL DEFAULT '0', 
    run_id VARBINARY(1020) NULL, 
    hidden_by VARBINARY(1020) NULL, 
    PRIMARY KEY (endpoint, due, id)
);

GO

CREATE INDEX timeoutmgr_timeouts_id ON timeoutmgr_timeouts (id);

GO

CREATE INDEX timeoutmgr_timeouts_saga ON timeoutmgr_timeouts (saga_id, endpoint);

GO

ALTER TABLE timeoutmgr_timeouts SET (LOCK_ESCALATION = DISABLE);

GO

CREATE TABLE timeoutmgr_timeout_keys (
    due BIGINT NOT NULL, 
    closed_at BIGINT NULL, 
    version INTEGER NOT NULL, 
    maybe_sent SMALLINT NOT NULL DEFAULT '0', 
    endpoint VARBINARY(1020) NOT NULL, 
    id VARBINARY(1020) NOT NULL, 
    state VARBINARY(1020) NOT NULL, 
    PRIMARY KEY (endpoint, id)
);

GO

CREATE INDEX timeoutmgr_timeout_keys_closed ON timeoutmgr_timeout_keys (endpoint, closed_at);

GO

ALTER TABLE timeoutmgr_timeout_keys SET (LOCK_ESCALATION = DISABLE);

GO

CREATE TABLE timeoutmgr_timeout_history (
    sequence BIGINT NOT NULL IDENTITY, 
    at BIGINT NOT NULL, 
    due BIGINT NOT NULL, 
    attempt INTEGER NOT NULL, 
    id VARBINARY(1020) NOT NULL, 
    event VARBINARY(1020) NOT NULL, 
    endpoint VARBINARY(1020) NOT NULL, 
    destination VARBINARY(1020) NOT NULL, 
    node VARBINARY(1020) NOT NULL, 
    run_id VARBINARY(1020) NULL, 
    body_sha256 VARBINARY(1020) NULL, 
    PRIMARY KEY (sequence)
);

GO

CREATE INDEX timeoutmgr_timeout_history_at ON timeoutmgr_timeout_history (endpoint, at);

GO

CREATE INDEX timeoutmgr_timeout_history_id ON timeoutmgr_timeout_history (id);

GO

ALTER TABLE timeoutmgr_timeout_history SET (LOCK_ESCALATION = DISABLE);

GO

CREATE TABLE timeoutmgr_claims (
    token VARBINARY(1020) NOT NULL, 
    endpoint VARBINARY(1020) NOT NULL, 
    from_due BIGINT NOT NULL, 
    from_id VARBINARY(1020) NOT NULL, 
    to_due BIGINT NOT NULL, 
    to_id VARBINARY(1020) NOT NULL, 
    owner VARBINARY(1020) NOT NULL, 
    claimed_until BIGINT NOT NULL, 
    size INTEGER NOT NULL, 
    taken_by VARBINARY(1020) NULL, 
    taken_at BIGINT NULL, 
    PRIMARY KEY (token)
);

GO

CREATE INDEX timeoutmgr_claims_endpoint ON timeoutmgr_claims (endpoint);

GO

ALTER TABLE timeoutmgr_claims SET (LOCK_ESCALATION = DISABLE);

GO

CREATE TABLE timeoutmgr_endpoints (
    endpoint VARBINARY(1020) NOT NULL, 
    PRIMARY KEY (endpoint)
);

GO

ALTER TABLE timeoutmgr_endpoints SET (LOCK_ESCALATION = DISABLE);

GO

CREATE TABLE timeoutmgr_processes (
    owner VARBINARY(1020) NOT NULL, 
    endpoint VARBINARY(1020) NOT NULL, 
    host VARBINARY(1020) NOT NULL, 
    pid INTEGER NOT NULL, 
    started BIGINT NOT NULL, 
    heartbeat BIGINT NOT NULL, 
    state NVARCHAR(max) NOT NULL, 
    PRIMARY KEY (owner)
);

GO

ALTER TABLE timeoutmgr_processes SET (LOCK_ESCALATION = DISABLE);

GO

CREATE TABLE timeoutmgr_runs (
    run_id VARBINARY(1020) NOT NULL, 
    kind VARBINARY(1020) NOT NULL, 
    state VARBINARY(1020) NOT NULL, 
    created BIGINT NOT NULL, 
    parameters NVARCHAR(max) NOT NULL, 
    PRIMARY KEY (run_id)
);

GO

ALTER TABLE timeoutmgr_runs SET (LOCK_ESCALATION = DISABLE);

GO

CREATE TABLE timeoutmgr_batches (
    run_id VARBINARY(1020) NOT NULL, 
    no INTEGER NOT NULL, 
    state VARBINARY(1020) NOT NULL, 
    count INTEGER NOT NULL, 
    PRIMARY KEY (run_id, no)
);

GO

ALTER TABLE timeoutmgr_batches SET (LOCK_ESCALATION = DISABLE);

GO

INSERT INTO timeoutmgr_timeouts_version (version_num) OUTPUT inserted.version_num VALUES ('0001');

GO

-- Running upgrade 0001 -> 0002

DROP INDEX timeoutmgr_timeouts_id ON timeoutmgr_timeouts;

GO

UPDATE timeoutmgr_timeouts_version SET version_num='0002' WHERE timeoutmgr_timeouts_version.version_num = '0001';

GO

-- Running upgrade 0002 -> 0003

ALTER TABLE timeoutmgr_runs ADD endpoint VARBINARY(1020) NULL;

GO

ALTER TABLE timeoutmgr_runs ADD runner VARBINARY(1020) NULL;

GO

ALTER TABLE timeoutmgr_runs ADD ended BIGINT NULL;

GO

ALTER TABLE timeoutmgr_runs ADD report NVARCHAR(max) NULL;

GO

ALTER TABLE timeoutmgr_batches ADD from_due BIGINT NULL;

GO

ALTER TABLE timeoutmgr_batches ADD from_id VARBINARY(1020) NULL;

GO

ALTER TABLE timeoutmgr_batches ADD to_due BIGINT NULL;

GO

ALTER TABLE timeoutmgr_batches ADD to_id VARBINARY(1020) NULL;

GO

ALTER TABLE timeoutmgr_batches ADD taken INTEGER NOT NULL DEFAULT '0';

GO

ALTER TABLE timeoutmgr_batches ADD arrived INTEGER NOT NULL DEFAULT '0';

GO

ALTER TABLE timeoutmgr_batches ADD known INTEGER NOT NULL DEFAULT '0';

GO

ALTER TABLE timeoutmgr_batches ADD returned INTEGER NOT NULL DEFAULT '0';

GO

ALTER TABLE timeoutmgr_batches ADD repeated INTEGER NOT NULL DEFAULT '0';

GO

UPDATE timeoutmgr_timeouts_version SET version_num='0003' WHERE timeoutmgr_timeouts_version.version_num = '0002';

GO

-- Running upgrade 0003 -> 0004

ALTER TABLE timeoutmgr_timeout_keys ADD content VARBINARY(max) NULL;

GO

UPDATE timeoutmgr_timeouts_version SET version_num='0004' WHERE timeoutmgr_timeouts_version.version_num = '0003';

GO

-- Running upgrade 0004 -> 0005

ALTER TABLE timeoutmgr_timeouts ADD original_due BIGINT NULL;

GO

CREATE INDEX timeoutmgr_timeouts_retried ON timeoutmgr_timeouts (endpoint, original_due);

GO

UPDATE timeoutmgr_timeouts_version SET version_num='0005' WHERE timeoutmgr_timeouts_version.version_num = '0004';

GO

-- Running upgrade 0005 -> 0006

ALTER TABLE timeoutmgr_endpoints ADD marker VARBINARY(256) NULL;

GO

ALTER TABLE timeoutmgr_endpoints ADD broker NVARCHAR(max) NULL;

GO

ALTER TABLE timeoutmgr_endpoints ADD marker_confirmed SMALLINT NOT NULL DEFAULT '0';

GO

UPDATE timeoutmgr_timeouts_version SET version_num='0006' WHERE timeoutmgr_timeouts_version.version_num = '0005';

GO

-- Running upgrade 0006 -> 0007

UPDATE timeoutmgr_timeouts_version SET version_num='0007' WHERE timeoutmgr_timeouts_version.version_num = '0006';

GO

-- Running upgrade 0007 -> 0008

ALTER TABLE timeoutmgr_timeout_history ADD channel NVARCHAR(max) NULL;

GO

UPDATE timeoutmgr_timeouts_version SET version_num='0008' WHERE timeoutmgr_timeouts_version.version_num = '0007';

GO

-- Running upgrade 0008 -> 0009

CREATE TABLE timeoutmgr_batch_claims (
    run_id VARBINARY(1020) NOT NULL, 
    no INTEGER NOT NULL, 
    endpoint VARBINARY(1020) NOT NULL, 
    owner VARBINARY(1020) NOT NULL, 
    claimed_at BIGINT NOT NULL, 
    PRIMARY KEY (run_id, no)
);

GO

ALTER TABLE timeoutmgr_batch_claims SET (LOCK_ESCALATION = DISABLE);

GO

CREATE TABLE timeoutmgr_fencing_tokens (
    run_id VARBINARY(1020) NOT NULL, 
    endpoint VARBINARY(1020) NOT NULL, 
    state VARBINARY(1020) NOT NULL, 
    created BIGINT NOT NULL, 
    PRIMARY KEY (run_id)
);

GO

ALTER TABLE timeoutmgr_fencing_tokens SET (LOCK_ESCALATION = DISABLE);

GO

UPDATE timeoutmgr_timeouts_version SET version_num='0009' WHERE timeoutmgr_timeouts_version.version_num = '0008';

GO

-- Running upgrade 0009 -> 0010

CREATE TABLE timeoutmgr_recurring (
    endpoint VARBINARY(1020) NOT NULL, 
    name VARBINARY(1020) NOT NULL, 
    every NVARCHAR(max) NOT NULL, 
    configured_at BIGINT NOT NULL, 
    done_until BIGINT NULL, 
    run_due BIGINT NULL, 
    run_id VARBINARY(1020) NULL, 
    is_paused SMALLINT NOT NULL, 
    PRIMARY KEY (endpoint, name)
);

GO

ALTER TABLE timeoutmgr_recurring SET (LOCK_ESCALATION = DISABLE);

GO

UPDATE timeoutmgr_timeouts_version SET version_num='0010' WHERE timeoutmgr_timeouts_version.version_num = '0009';

GO

-- Running upgrade 0010 -> 0011

CREATE TABLE timeoutmgr_cleared_sagas (
    endpoint VARBINARY(1020) NOT NULL, 
    saga_id VARBINARY(1020) NOT NULL, 
    order_id VARCHAR(max) NULL, 
    cleared_at BIGINT NULL, 
    sent BIGINT NULL, 
    receiver INTEGER NULL, 
    kept VARCHAR(max) NULL, 
    channel VARCHAR(max) NULL, 
    PRIMARY KEY (endpoint, saga_id)
);

GO

CREATE INDEX timeoutmgr_cleared_sagas_age ON timeoutmgr_cleared_sagas (endpoint, cleared_at);

GO

ALTER TABLE timeoutmgr_cleared_sagas SET (LOCK_ESCALATION = DISABLE);

GO

ALTER TABLE timeoutmgr_timeouts ADD place BIGINT NULL;

GO

UPDATE timeoutmgr_timeouts_version SET version_num='0011' WHERE timeoutmgr_timeouts_version.version_num = '0010';

GO

-- Running upgrade 0011 -> 0012

CREATE TABLE timeoutmgr_timeout_labels (
    endpoint VARBINARY(1020) NOT NULL, 
    label VARBINARY(1020) NOT NULL, 
    due BIGINT NOT NULL, 
    id VARBINARY(1020) NOT NULL, 
    PRIMARY KEY (endpoint, label, due, id)
);

GO

ALTER TABLE timeoutmgr_timeout_labels SET (LOCK_ESCALATION = DISABLE);

GO

UPDATE timeoutmgr_timeouts_version SET version_num='0012' WHERE timeoutmgr_timeouts_version.version_num = '0011';

GO

-- Running upgrade 0012 -> 0013

CREATE TABLE timeoutmgr_pauses (
    endpoint VARBINARY(1020) NOT NULL, 
    destination VARBINARY(1020) NOT NULL, 
    parked BIGINT NOT NULL, 
    since BIGINT NOT NULL, 
    until BIGINT NULL, 
    actor NVARCHAR(max) NOT NULL, 
    reason NVARCHAR(max) NULL, 
    is_ending SMALLINT NOT NULL, 
    PRIMARY KEY (endpoint, destination, parked)
);

GO

ALTER TABLE timeoutmgr_pauses SET (LOCK_ESCALATION = DISABLE);

GO

CREATE TABLE timeoutmgr_audit (
    endpoint VARBINARY(1020) NOT NULL, 
    chain VARBINARY(256) NOT NULL, 
    number INTEGER NOT NULL, 
    at BIGINT NOT NULL, 
    actor NVARCHAR(max) NOT NULL, 
    role NVARCHAR(max) NULL, 
    channel NVARCHAR(max) NOT NULL, 
    action VARBINARY(256) NOT NULL, 
    selection NVARCHAR(max) NOT NULL, 
    dry_run SMALLINT NOT NULL, 
    expected BIGINT NULL, 
    changed BIGINT NULL, 
    outcome VARBINARY(256) NOT NULL, 
    run_id VARBINARY(1020) NULL, 
    reason NVARCHAR(max) NULL, 
    previous_hash VARBINARY(256) NOT NULL, 
    hash VARBINARY(256) NOT NULL, 
    PRIMARY KEY (endpoint, chain, number)
);

GO

CREATE INDEX timeoutmgr_audit_at ON timeoutmgr_audit (endpoint, at);

GO

ALTER TABLE timeoutmgr_audit SET (LOCK_ESCALATION = DISABLE);

GO

CREATE TABLE timeoutmgr_run_keys (
    run_id VARBINARY(256) NOT NULL, 
    no INTEGER NOT NULL, 
    due BIGINT NOT NULL, 
    id VARBINARY(1020) NOT NULL, 
    endpoint VARBINARY(1020) NOT NULL, 
    original_due BIGINT NULL, 
    version INTEGER NOT NULL, 
    is_left SMALLINT NULL, 
    PRIMARY KEY (run_id, no, due, id)
);

GO

ALTER TABLE timeoutmgr_run_keys SET (LOCK_ESCALATION = DISABLE);

GO

UPDATE timeoutmgr_timeouts_version SET version_num='0013' WHERE timeoutmgr_timeouts_version.version_num = '0012';

GO

-- Running upgrade 0013 -> 0014since0013

CREATE TABLE timeoutmgr_load (
    endpoint VARBINARY(1020) NOT NULL, 
    destination VARBINARY(1020) NOT NULL, 
    bucket BIGINT NOT NULL, 
    width BIGINT NOT NULL, 
    count BIGINT NOT NULL, 
    as_of BIGINT NOT NULL, 
    destinations INTEGER NULL, 
    PRIMARY KEY (endpoint, destination, bucket)
);

GO

CREATE INDEX timeoutmgr_load_buckets ON timeoutmgr_load (endpoint, bucket);

GO

ALTER TABLE timeoutmgr_load SET (LOCK_ESCALATION = DISABLE);

GO

CREATE TABLE timeoutmgr_load_passes (
    endpoint VARBINARY(1020) NOT NULL, 
    width BIGINT NOT NULL, 
    asked BIGINT NOT NULL, 
    asked_by_destination BIGINT NULL, 
    ended BIGINT NULL, 
    since BIGINT NULL, 
    until BIGINT NULL, 
    due BIGINT NULL, 
    id VARBINARY(1020) NULL, 
    tally NVARCHAR(max) NULL, 
    PRIMARY KEY (endpoint, width)
);

GO

ALTER TABLE timeoutmgr_load_passes SET (LOCK_ESCALATION = DISABLE);

GO

UPDATE timeoutmgr_timeouts_version SET version_num='0014since0013' WHERE timeoutmgr_timeouts_version.version_num = '0013';

GO

-- Running upgrade 0014since0013 -> 0015since0013

UPDATE timeoutmgr_timeouts_version SET version_num='0015since0013' WHERE timeoutmgr_timeouts_version.version_num = '0014since0013';

GO

-- Running upgrade 0015since0013 -> 0016since0013

CREATE INDEX timeoutmgr_audit_run ON timeoutmgr_audit (run_id);

GO

UPDATE timeoutmgr_timeouts_version SET version_num='0016since0013' WHERE timeoutmgr_timeouts_version.version_num = '0015since0013';

GO

COMMIT;

GO

BEGIN TRANSACTION;

CREATE TABLE [sales.delayed.version] (
    version_num VARCHAR(32) NOT NULL, 
    CONSTRAINT [sales.delayed.version_pkc] PRIMARY KEY (version_num)
);

GO

-- Running upgrade  -> 0001

CREATE TABLE [sales.delayed] (
    next_try BIGINT NOT NULL, 
    id VARBINARY(1020) NOT NULL, 
    due BIGINT NOT NULL, 
    destination VARBINARY(1020) NOT NULL, 
    saga_id VARBINARY(1020) NULL, 
    message_id VARBINARY(1020) NOT NULL, 
    headers NVARCHAR(max) NOT NULL, 
    body VARBINARY(max) NOT NULL, 
    content_type VARBINARY(1020) NOT NULL, 
    content_encoding VARBINARY(1020) NOT NULL, 
    created BIGINT NOT NULL, 
    attempts INTEGER NOT NULL, 
    claimed_by VARBINARY(1020) NULL, 
    claimed_until BIGINT NOT NULL DEFAULT '0', 
    PRIMARY KEY (next_try, id)
);

GO

CREATE UNIQUE INDEX [sales.delayed.id] ON [sales.delayed] (id);

GO

ALTER TABLE [sales.delayed] SET (LOCK_ESCALATION = DISABLE);

GO

INSERT INTO [sales.delayed.version] (version_num) OUTPUT inserted.version_num VALUES ('0001');

GO

-- Running upgrade 0001 -> 0002

CREATE TABLE [sales.delayed.marker] (
    endpoint VARBINARY(1020) NOT NULL, 
    marker VARBINARY(256) NULL, 
    broker NVARCHAR(max) NULL, 
    marker_confirmed SMALLINT NOT NULL DEFAULT '0', 
    PRIMARY KEY (endpoint)
);

GO

ALTER TABLE [sales.delayed.marker] SET (LOCK_ESCALATION = DISABLE);

GO

UPDATE [sales.delayed.version] SET version_num='0002' WHERE [sales.delayed.version].version_num = '0001';

GO

COMMIT;

GO

-- the proof at a start

SELECT @@SPID

SET NOCOUNT ON; DECLARE @answer int; EXEC @answer = sp_getapplock @Resource = %(name)s, @LockOwner = 'Session', @LockMode = 'Exclusive', @LockTimeout = 0; SET NOCOUNT OFF; SELECT CASE WHEN @answer >= 0 THEN 1 ELSE 0 END

SELECT 1 - APPLOCK_TEST('public', %(name)s, 'Exclusive', 'Session')

SELECT @@SPID, CASE APPLOCK_MODE('public', %(name)s, 'Session') WHEN 'Exclusive' THEN 1 ELSE 0 END

SET NOCOUNT ON; DECLARE @answer int; EXEC @answer = sp_releaseapplock @Resource = %(name)s, @LockOwner = 'Session'; SET NOCOUNT OFF; SELECT CASE WHEN @answer >= 0 THEN 1 ELSE 0 END

SELECT timeoutmgr_timeouts_version.version_num 
FROM timeoutmgr_timeouts_version

SELECT timeoutmgr_timeouts_version.version_num 
FROM timeoutmgr_timeouts_version WITH (READCOMMITTEDLOCK, READPAST, UPDLOCK, ROWLOCK)

INSERT INTO timeoutmgr_timeouts_version (version_num) SELECT %(version_num_)s AS anon_1 
WHERE NOT (EXISTS (SELECT 1 
FROM timeoutmgr_timeouts_version AS present WITH (UPDLOCK, HOLDLOCK, ROWLOCK) 
WHERE present.version_num = %(version_num_)s))

UPDATE timeoutmgr_timeouts_version SET version_num=%(version_num)s

UPDATE timeoutmgr_timeouts_version SET version_num=%(version_num)s OUTPUT inserted.version_num

SELECT DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME())

-- markers and processes

INSERT INTO timeoutmgr_endpoints (endpoint) SELECT CAST(%(endpoint_)s AS VARBINARY(1020)) AS anon_1 
WHERE NOT (EXISTS (SELECT 1 
FROM timeoutmgr_endpoints AS present WITH (UPDLOCK, HOLDLOCK, ROWLOCK) 
WHERE present.endpoint = CAST(%(endpoint_)s AS VARBINARY(1020))))

UPDATE timeoutmgr_endpoints SET marker=CAST(%(marker)s AS VARBINARY(1020)), broker=%(broker)s, marker_confirmed=%(marker_confirmed)s WHERE timeoutmgr_endpoints.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_endpoints.marker IS NULL

SELECT timeoutmgr_endpoints.marker, timeoutmgr_endpoints.broker, timeoutmgr_endpoints.marker_confirmed 
FROM timeoutmgr_endpoints 
WHERE timeoutmgr_endpoints.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_endpoints.marker IS NOT NULL

UPDATE timeoutmgr_endpoints SET marker=CAST(%(marker)s AS VARBINARY(1020)), broker=%(broker)s, marker_confirmed=%(marker_confirmed)s WHERE timeoutmgr_endpoints.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020))

UPDATE timeoutmgr_processes SET heartbeat=DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME()), state=%(state)s WHERE timeoutmgr_processes.owner = CAST(%(owner_1)s AS VARBINARY(1020))

SELECT DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME()) AS now

INSERT INTO timeoutmgr_processes (owner, endpoint, host, pid, started, heartbeat, state) SELECT CAST(%(owner_)s AS VARBINARY(1020)) AS anon_1, CAST(%(endpoint_)s AS VARBINARY(1020)) AS anon_2, CAST(%(host_)s AS VARBINARY(1020)) AS anon_3, %(pid_)s AS anon_4, %(started_)s AS anon_5, %(heartbeat_)s AS anon_6, %(state_)s AS anon_7 
WHERE NOT (EXISTS (SELECT 1 
FROM timeoutmgr_processes AS present WITH (UPDLOCK, HOLDLOCK, ROWLOCK) 
WHERE present.owner = CAST(%(owner_)s AS VARBINARY(1020))))

SELECT CASE WHEN (EXISTS (SELECT * 
FROM timeoutmgr_processes AS timeoutmgr_processes_1 
WHERE timeoutmgr_processes_1.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_processes_1.owner != CAST(%(owner_1)s AS VARBINARY(1020)) AND timeoutmgr_processes_1.heartbeat > DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME()) - %(DATEDIFF_BIG_MICROSECOND,_'19700101',_SYSUTCDATETIME_1)s)) THEN 1 ELSE 0 END AS anon_1

SELECT timeoutmgr_processes.owner, timeoutmgr_processes.endpoint, timeoutmgr_processes.host, timeoutmgr_processes.pid, timeoutmgr_processes.started, timeoutmgr_processes.heartbeat, timeoutmgr_processes.state 
FROM timeoutmgr_processes 
WHERE timeoutmgr_processes.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) ORDER BY timeoutmgr_processes.heartbeat DESC

-- store

INSERT INTO timeoutmgr_timeout_keys (endpoint, id, due, version, state, maybe_sent, content) SELECT CAST(%(endpoint_)s AS VARBINARY(1020)) AS anon_1, CAST(%(id_)s AS VARBINARY(1020)) AS anon_2, %(due_)s AS anon_3, %(version_)s AS anon_4, CAST(%(state_)s AS VARBINARY(1020)) AS anon_5, %(maybe_sent_)s AS anon_6, CAST(%(content_)s AS VARBINARY(max)) AS anon_7 
WHERE NOT (EXISTS (SELECT 1 
FROM timeoutmgr_timeout_keys AS present WITH (UPDLOCK, HOLDLOCK, ROWLOCK) 
WHERE present.endpoint = CAST(%(endpoint_)s AS VARBINARY(1020)) AND present.id = CAST(%(id_)s AS VARBINARY(1020))))

INSERT INTO timeoutmgr_timeouts (endpoint, due, id, destination, saga_id, message_id, headers, body, content_type, content_encoding, created, version, attempts, maybe_sent) VALUES (CAST(%(endpoint)s AS VARBINARY(1020)), %(due)s, CAST(%(id)s AS VARBINARY(1020)), CAST(%(destination)s AS VARBINARY(1020)), CAST(%(saga_id)s AS VARBINARY(1020)), CAST(%(message_id)s AS VARBINARY(1020)), %(headers)s, CAST(%(body)s AS VARBINARY(max)), CAST(%(content_type)s AS VARBINARY(1020)), CAST(%(content_encoding)s AS VARBINARY(1020)), %(created)s, %(version)s, %(attempts)s, %(maybe_sent)s)

INSERT INTO timeoutmgr_timeout_history (id, event, at, due, endpoint, destination, attempt, node, run_id) OUTPUT inserted.sequence VALUES (CAST(%(id)s AS VARBINARY(1020)), CAST(%(event)s AS VARBINARY(1020)), %(at)s, %(due)s, CAST(%(endpoint)s AS VARBINARY(1020)), CAST(%(destination)s AS VARBINARY(1020)), %(attempt)s, CAST(%(node)s AS VARBINARY(1020)), CAST(%(run_id)s AS VARBINARY(1020)))

SELECT timeoutmgr_timeout_keys.state, timeoutmgr_timeout_keys.content 
FROM timeoutmgr_timeout_keys WITH (UPDLOCK, ROWLOCK) 
WHERE timeoutmgr_timeout_keys.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_timeout_keys.id = CAST(%(id)s AS VARBINARY(1020))

-- claim and dispatch

SELECT TOP (%(limit)s) timeoutmgr_timeouts.due, timeoutmgr_timeouts.id, DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME()) AS now 
FROM timeoutmgr_timeouts 
WHERE timeoutmgr_timeouts.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_timeouts.hidden_by IS NULL AND (timeoutmgr_timeouts.due > %(start_due)s OR timeoutmgr_timeouts.due = %(start_due)s AND timeoutmgr_timeouts.id >= CAST(%(start_id)s AS VARBINARY(1020))) ORDER BY timeoutmgr_timeouts.due, timeoutmgr_timeouts.id

SELECT 1

SELECT 1 - APPLOCK_TEST('public', %s, 'Exclusive', 'Session')

SELECT timeoutmgr_endpoints.endpoint 
FROM timeoutmgr_endpoints WITH (UPDLOCK, ROWLOCK) 
WHERE timeoutmgr_endpoints.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020))

SELECT timeoutmgr_claims.token, timeoutmgr_claims.from_due, timeoutmgr_claims.from_id, timeoutmgr_claims.to_due, timeoutmgr_claims.to_id, timeoutmgr_claims.owner, timeoutmgr_claims.claimed_until, timeoutmgr_claims.size, timeoutmgr_claims.taken_by, first_row.due, first_row.id 
FROM timeoutmgr_claims LEFT OUTER JOIN (SELECT TOP (%(param_1)s) timeoutmgr_timeouts.due AS due, timeoutmgr_timeouts.id AS id 
FROM timeoutmgr_timeouts 
WHERE timeoutmgr_timeouts.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_timeouts.hidden_by IS NULL AND (timeoutmgr_timeouts.due > %(start_due)s OR timeoutmgr_timeouts.due = %(start_due)s AND timeoutmgr_timeouts.id >= CAST(%(start_id)s AS VARBINARY(1020))) ORDER BY timeoutmgr_timeouts.due, timeoutmgr_timeouts.id) AS first_row ON 1 = 1 
WHERE timeoutmgr_claims.endpoint = CAST(%(endpoint_2)s AS VARBINARY(1020))

INSERT INTO timeoutmgr_claims (token, endpoint, from_due, from_id, to_due, to_id, owner, claimed_until, size, taken_by, taken_at) VALUES (CAST(%(token)s AS VARBINARY(1020)), CAST(%(endpoint)s AS VARBINARY(1020)), %(from_due)s, CAST(%(from_id)s AS VARBINARY(1020)), %(to_due)s, CAST(%(to_id)s AS VARBINARY(1020)), CAST(%(owner)s AS VARBINARY(1020)), %(claimed_until)s, %(size)s, CAST(%(taken_by)s AS VARBINARY(1020)), %(taken_at)s)

SELECT timeoutmgr_timeouts.due, timeoutmgr_timeouts.id, timeoutmgr_timeouts.destination, timeoutmgr_timeouts.saga_id, timeoutmgr_timeouts.created, timeoutmgr_timeouts.attempts, timeoutmgr_timeouts.message_id, timeoutmgr_timeouts.headers, CASE WHEN (DATALENGTH(timeoutmgr_timeouts.body) <= %(length_1)s) THEN timeoutmgr_timeouts.body END AS body, timeoutmgr_timeouts.content_type, timeoutmgr_timeouts.content_encoding, timeoutmgr_timeouts.original_due, DATALENGTH(timeoutmgr_timeouts.body) AS size, timeoutmgr_timeouts.run_id, CASE WHEN (CASE WHEN (EXISTS (SELECT TOP (%(param_1)s) timeoutmgr_pauses.parked 
FROM timeoutmgr_pauses 
WHERE timeoutmgr_pauses.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)))) THEN 1 ELSE 0 END) THEN (SELECT max(timeoutmgr_pauses.parked) AS max_1 
FROM timeoutmgr_pauses 
WHERE timeoutmgr_pauses.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_pauses.is_ending = %(is_ending_1)s AND timeoutmgr_pauses.parked > DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME()) AND timeoutmgr_pauses.destination IN (CAST(%(destination_1)s AS VARBINARY(1020)), timeoutmgr_timeouts.destination)) END AS parked_at, CASE WHEN (EXISTS (SELECT * 
FROM timeoutmgr_claims 
WHERE timeoutmgr_claims.token = CAST(%(token)s AS VARBINARY(1020)))) THEN 1 ELSE 0 END AS claimed, DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME()) AS now 
FROM timeoutmgr_timeouts WITH (READCOMMITTEDLOCK, READPAST, UPDLOCK, ROWLOCK) 
WHERE timeoutmgr_timeouts.endpoint = CAST(%(endpoint)s AS VARBINARY(1020)) AND (timeoutmgr_timeouts.due = %(due_1)s AND timeoutmgr_timeouts.id = CAST(%(id_1)s AS VARBINARY(1020)) OR timeoutmgr_timeouts.due = %(due_2)s AND timeoutmgr_timeouts.id = CAST(%(id_2)s AS VARBINARY(1020)) OR timeoutmgr_timeouts.due = %(due_3)s AND timeoutmgr_timeouts.id = CAST(%(id_3)s AS VARBINARY(1020))) AND timeoutmgr_timeouts.hidden_by IS NULL AND timeoutmgr_timeouts.due <= DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME()) + %(ahead)s ORDER BY timeoutmgr_timeouts.due, timeoutmgr_timeouts.id

SELECT timeoutmgr_timeouts.due, timeoutmgr_timeouts.id, timeoutmgr_timeouts.body 
FROM timeoutmgr_timeouts 
WHERE timeoutmgr_timeouts.endpoint = CAST(%(endpoint)s AS VARBINARY(1020)) AND timeoutmgr_timeouts.due = %(due_1)s AND timeoutmgr_timeouts.id = CAST(%(id_1)s AS VARBINARY(1020))

UPDATE timeoutmgr_timeout_keys SET state=CAST(%(state_)s AS VARBINARY(1020)), closed_at=%(closed_at_)s WHERE timeoutmgr_timeout_keys.endpoint = CAST(%(endpoint_)s AS VARBINARY(1020)) AND timeoutmgr_timeout_keys.id = CAST(%(id_)s AS VARBINARY(1020))

DELETE FROM timeoutmgr_timeouts WHERE timeoutmgr_timeouts.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_timeouts.due = %(due_)s AND timeoutmgr_timeouts.id = CAST(%(id_)s AS VARBINARY(1020))

UPDATE timeoutmgr_timeouts SET maybe_sent=%(maybe_sent)s WHERE timeoutmgr_timeouts.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_timeouts.due = %(due_)s AND timeoutmgr_timeouts.id = CAST(%(id_)s AS VARBINARY(1020))

UPDATE timeoutmgr_timeouts SET original_due=coalesce(timeoutmgr_timeouts.original_due, timeoutmgr_timeouts.due), due=%(next_try_)s, attempts=(timeoutmgr_timeouts.attempts + %(attempts_1)s) WHERE timeoutmgr_timeouts.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_timeouts.due = %(due_)s AND timeoutmgr_timeouts.id = CAST(%(id_)s AS VARBINARY(1020))

UPDATE timeoutmgr_timeout_keys SET due=%(next_try_)s WHERE timeoutmgr_timeout_keys.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_timeout_keys.id = CAST(%(id_)s AS VARBINARY(1020)) AND timeoutmgr_timeout_keys.due = %(due_)s AND timeoutmgr_timeout_keys.state = CAST(%(state_1)s AS VARBINARY(1020))

DELETE FROM timeoutmgr_claims WHERE timeoutmgr_claims.token = CAST(%(one)s AS VARBINARY(1020)) AND timeoutmgr_claims.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020))

-- queries

SELECT count(*) AS count_1 
FROM timeoutmgr_timeouts 
WHERE timeoutmgr_timeouts.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020))

SELECT TOP (%(param_1)s) timeoutmgr_timeouts.endpoint, timeoutmgr_timeouts.due, timeoutmgr_timeouts.id, timeoutmgr_timeouts.destination, timeoutmgr_timeouts.saga_id, timeoutmgr_timeouts.message_id, timeoutmgr_timeouts.headers, timeoutmgr_timeouts.body, timeoutmgr_timeouts.content_type, timeoutmgr_timeouts.content_encoding, timeoutmgr_timeouts.created, timeoutmgr_timeouts.version, timeoutmgr_timeouts.attempts, timeoutmgr_timeouts.next_try, timeoutmgr_timeouts.original_due, timeoutmgr_timeouts.maybe_sent, timeoutmgr_timeouts.run_id, timeoutmgr_timeouts.hidden_by, timeoutmgr_timeouts.place 
FROM timeoutmgr_timeouts 
WHERE timeoutmgr_timeouts.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_timeouts.saga_id = CAST(%(saga_id_1)s AS VARBINARY(1020)) ORDER BY timeoutmgr_timeouts.due + 0, timeoutmgr_timeouts.id

SELECT timeoutmgr_timeouts.due, timeoutmgr_timeouts.id 
FROM timeoutmgr_timeouts 
WHERE timeoutmgr_timeouts.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) ORDER BY timeoutmgr_timeouts.due, timeoutmgr_timeouts.id
 OFFSET %(param_1)s ROWS
 FETCH FIRST %(param_2)s ROWS ONLY

SELECT TOP (%(param_1)s) timeoutmgr_timeouts.endpoint, timeoutmgr_timeouts.due, timeoutmgr_timeouts.id, timeoutmgr_timeouts.destination, timeoutmgr_timeouts.saga_id, timeoutmgr_timeouts.message_id, timeoutmgr_timeouts.headers, timeoutmgr_timeouts.body, timeoutmgr_timeouts.content_type, timeoutmgr_timeouts.content_encoding, timeoutmgr_timeouts.created, timeoutmgr_timeouts.version, timeoutmgr_timeouts.attempts, timeoutmgr_timeouts.next_try, timeoutmgr_timeouts.original_due, timeoutmgr_timeouts.maybe_sent, timeoutmgr_timeouts.run_id, timeoutmgr_timeouts.hidden_by, timeoutmgr_timeouts.place 
FROM timeoutmgr_timeouts 
WHERE timeoutmgr_timeouts.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_timeouts.destination = CAST(%(destination_1)s AS VARBINARY(1020)) ORDER BY timeoutmgr_timeouts.due, timeoutmgr_timeouts.id

SELECT coalesce(sum(anon_1.hit), %(coalesce_2)s) AS coalesce_1 
FROM (SELECT TOP (%(param_1)s) CASE WHEN (timeoutmgr_timeouts.destination = CAST(%(destination_1)s AS VARBINARY(1020))) THEN %(param_2)s ELSE %(param_3)s END AS hit 
FROM timeoutmgr_timeouts 
WHERE timeoutmgr_timeouts.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) ORDER BY timeoutmgr_timeouts.due, timeoutmgr_timeouts.id) AS anon_1

SELECT count(*) AS count_1 
FROM (SELECT TOP (%(param_1)s) timeoutmgr_timeouts.due AS due, timeoutmgr_timeouts.id AS id 
FROM timeoutmgr_timeouts 
WHERE timeoutmgr_timeouts.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020))) AS anon_1

SELECT timeoutmgr_pauses.parked 
FROM timeoutmgr_pauses 
WHERE timeoutmgr_pauses.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020))

SELECT count(*) AS count_1 
FROM (SELECT TOP (%(param_1)s) timeoutmgr_timeouts.due AS due 
FROM timeoutmgr_timeouts 
WHERE timeoutmgr_timeouts.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_timeouts.original_due IS NOT NULL AND timeoutmgr_timeouts.original_due < %(original_due_1)s) AS anon_1

SELECT count(*) AS count_1 
FROM (SELECT TOP (%(param_1)s) timeoutmgr_timeouts.due AS due, timeoutmgr_timeouts.id AS id 
FROM timeoutmgr_timeouts 
WHERE timeoutmgr_timeouts.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_timeouts.due < %(due_1)s) AS anon_1

SELECT count(*) AS count_1 
FROM (SELECT TOP (%(param_1)s) timeoutmgr_timeouts.due + 0 AS anon_2, timeoutmgr_timeouts.id AS id 
FROM timeoutmgr_timeouts 
WHERE timeoutmgr_timeouts.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_timeouts.original_due IS NOT NULL AND timeoutmgr_timeouts.original_due < %(original_due_1)s AND timeoutmgr_timeouts.due + 0 >= %(param_2)s) AS anon_1

SELECT anon_1.event, count(*) AS count_1 
FROM (SELECT TOP (%(param_1)s) timeoutmgr_timeout_history.event AS event 
FROM timeoutmgr_timeout_history 
WHERE timeoutmgr_timeout_history.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_timeout_history.at > %(at_1)s ORDER BY timeoutmgr_timeout_history.at DESC) AS anon_1 GROUP BY anon_1.event

SELECT TOP (%(param_1)s) anon_1.at, anon_1.due 
FROM (SELECT TOP (%(param_2)s) timeoutmgr_timeout_history.at AS at, timeoutmgr_timeout_history.due AS due, timeoutmgr_timeout_history.event AS event 
FROM timeoutmgr_timeout_history 
WHERE timeoutmgr_timeout_history.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) ORDER BY timeoutmgr_timeout_history.at DESC) AS anon_1 
WHERE anon_1.event = CAST(%(event_1)s AS VARBINARY(1020)) ORDER BY anon_1.at DESC

SELECT min(timeoutmgr_timeouts.due) AS min_1 
FROM timeoutmgr_timeouts 
WHERE timeoutmgr_timeouts.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020))

SELECT min(anon_1.original_due) AS min_1 
FROM (SELECT TOP (%(param_1)s) timeoutmgr_timeouts.original_due AS original_due, timeoutmgr_timeouts.due AS due 
FROM timeoutmgr_timeouts 
WHERE timeoutmgr_timeouts.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_timeouts.original_due IS NOT NULL ORDER BY timeoutmgr_timeouts.original_due) AS anon_1 
WHERE (anon_1.due NOT IN (NULL) OR (1 = 1))

SELECT coalesce(sum(timeoutmgr_claims.size), %(coalesce_2)s) AS coalesce_1 
FROM timeoutmgr_claims 
WHERE timeoutmgr_claims.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_claims.claimed_until > DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME())

SELECT timeoutmgr_timeout_keys.state, timeoutmgr_timeouts.endpoint, timeoutmgr_timeouts.due, timeoutmgr_timeouts.id, timeoutmgr_timeouts.destination, timeoutmgr_timeouts.saga_id, timeoutmgr_timeouts.message_id, timeoutmgr_timeouts.headers, timeoutmgr_timeouts.body, timeoutmgr_timeouts.content_type, timeoutmgr_timeouts.content_encoding, timeoutmgr_timeouts.created, timeoutmgr_timeouts.version, timeoutmgr_timeouts.attempts, timeoutmgr_timeouts.next_try, timeoutmgr_timeouts.original_due, timeoutmgr_timeouts.maybe_sent, timeoutmgr_timeouts.run_id, timeoutmgr_timeouts.hidden_by, timeoutmgr_timeouts.place 
FROM timeoutmgr_timeout_keys LEFT OUTER JOIN timeoutmgr_timeouts ON timeoutmgr_timeouts.endpoint = timeoutmgr_timeout_keys.endpoint AND timeoutmgr_timeouts.due = timeoutmgr_timeout_keys.due AND timeoutmgr_timeouts.id = timeoutmgr_timeout_keys.id 
WHERE timeoutmgr_timeout_keys.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_timeout_keys.id = CAST(%(wanted)s AS VARBINARY(1020))

SELECT TOP (%(limit)s) anon_1.id, anon_1.event, anon_1.at, anon_1.due, anon_1.destination, anon_1.attempt, anon_1.node, anon_1.channel 
FROM (SELECT timeoutmgr_timeout_history.id AS id, timeoutmgr_timeout_history.event AS event, timeoutmgr_timeout_history.at AS at, timeoutmgr_timeout_history.due AS due, timeoutmgr_timeout_history.destination AS destination, timeoutmgr_timeout_history.attempt AS attempt, timeoutmgr_timeout_history.node AS node, timeoutmgr_timeout_history.channel AS channel, timeoutmgr_timeout_history.sequence AS sequence 
FROM timeoutmgr_timeout_history 
WHERE timeoutmgr_timeout_history.id = CAST(%(wanted)s AS VARBINARY(1020)) AND (timeoutmgr_timeout_history.run_id IS NOT NULL OR timeoutmgr_timeout_history.event != CAST(%(param_1)s AS VARBINARY(1020))) AND (timeoutmgr_timeout_history.endpoint + CAST(%(endpoint_1)s AS VARBINARY(1020))) = CAST(%(param_2)s AS VARBINARY(1020)) UNION ALL SELECT timeoutmgr_timeout_history.id AS id, timeoutmgr_timeout_history.event AS event, timeoutmgr_timeout_history.at AS at, timeoutmgr_timeout_history.due AS due, timeoutmgr_timeout_history.destination AS destination, timeoutmgr_timeout_history.attempt AS attempt, timeoutmgr_timeout_history.node AS node, timeoutmgr_timeout_history.channel AS channel, timeoutmgr_timeout_history.sequence AS sequence 
FROM timeoutmgr_timeout_history 
WHERE timeoutmgr_timeout_history.endpoint = CAST(%(endpoint_2)s AS VARBINARY(1020)) AND timeoutmgr_timeout_history.at = (SELECT timeoutmgr_timeout_keys.closed_at 
FROM timeoutmgr_timeout_keys 
WHERE timeoutmgr_timeout_keys.endpoint = CAST(%(endpoint_3)s AS VARBINARY(1020)) AND timeoutmgr_timeout_keys.id = CAST(%(wanted)s AS VARBINARY(1020))) AND (timeoutmgr_timeout_history.id + CAST(%(id_1)s AS VARBINARY(1020))) = CAST(%(wanted)s AS VARBINARY(1020)) AND NOT (timeoutmgr_timeout_history.run_id IS NOT NULL OR timeoutmgr_timeout_history.event != CAST(%(param_1)s AS VARBINARY(1020)))) AS anon_1 ORDER BY anon_1.sequence DESC

SELECT TOP (%(param_1)s) timeoutmgr_timeouts.endpoint 
FROM timeoutmgr_timeouts 
WHERE timeoutmgr_timeouts.endpoint > CAST(%(endpoint_1)s AS VARBINARY(1020)) ORDER BY timeoutmgr_timeouts.endpoint

SELECT max(timeoutmgr_processes.heartbeat) AS max_1 
FROM timeoutmgr_processes 
WHERE timeoutmgr_processes.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020))

-- changes

SELECT timeoutmgr_timeout_keys.endpoint, timeoutmgr_timeout_keys.id, timeoutmgr_timeout_keys.due, timeoutmgr_timeout_keys.version, timeoutmgr_timeout_keys.state, timeoutmgr_timeout_keys.closed_at, timeoutmgr_timeout_keys.maybe_sent, timeoutmgr_timeout_keys.content 
FROM timeoutmgr_timeout_keys 
WHERE timeoutmgr_timeout_keys.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_timeout_keys.id = CAST(%(id)s AS VARBINARY(1020))

SELECT timeoutmgr_timeouts.endpoint, timeoutmgr_timeouts.due, timeoutmgr_timeouts.id, timeoutmgr_timeouts.destination, timeoutmgr_timeouts.saga_id, timeoutmgr_timeouts.message_id, timeoutmgr_timeouts.headers, timeoutmgr_timeouts.body, timeoutmgr_timeouts.content_type, timeoutmgr_timeouts.content_encoding, timeoutmgr_timeouts.created, timeoutmgr_timeouts.version, timeoutmgr_timeouts.attempts, timeoutmgr_timeouts.next_try, timeoutmgr_timeouts.original_due, timeoutmgr_timeouts.maybe_sent, timeoutmgr_timeouts.run_id, timeoutmgr_timeouts.hidden_by, timeoutmgr_timeouts.place 
FROM timeoutmgr_timeouts WITH (READCOMMITTEDLOCK, READPAST, UPDLOCK, ROWLOCK) 
WHERE timeoutmgr_timeouts.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_timeouts.due = %(due_)s AND timeoutmgr_timeouts.id = CAST(%(id_)s AS VARBINARY(1020))

SELECT timeoutmgr_timeout_keys.endpoint, timeoutmgr_timeout_keys.id, timeoutmgr_timeout_keys.due, timeoutmgr_timeout_keys.version, timeoutmgr_timeout_keys.state, timeoutmgr_timeout_keys.closed_at, timeoutmgr_timeout_keys.maybe_sent, timeoutmgr_timeout_keys.content 
FROM timeoutmgr_timeout_keys WITH (UPDLOCK, ROWLOCK) 
WHERE timeoutmgr_timeout_keys.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_timeout_keys.id = CAST(%(id)s AS VARBINARY(1020))

SELECT timeoutmgr_claims.token, timeoutmgr_claims.from_due, timeoutmgr_claims.from_id, timeoutmgr_claims.to_due, timeoutmgr_claims.to_id, timeoutmgr_claims.owner, timeoutmgr_claims.claimed_until, timeoutmgr_claims.size, timeoutmgr_claims.taken_by 
FROM timeoutmgr_claims 
WHERE timeoutmgr_claims.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020))

UPDATE timeoutmgr_timeout_keys SET state=CAST(%(state)s AS VARBINARY(1020)), closed_at=%(closed_at)s, maybe_sent=%(maybe_sent)s WHERE timeoutmgr_timeout_keys.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_timeout_keys.id = CAST(%(id_)s AS VARBINARY(1020))

SELECT TOP (%(param_1)s) timeoutmgr_audit.hash 
FROM timeoutmgr_audit 
WHERE timeoutmgr_audit.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) ORDER BY timeoutmgr_audit.at DESC, timeoutmgr_audit.chain DESC, timeoutmgr_audit.number DESC

INSERT INTO timeoutmgr_audit (endpoint, chain, number, at, actor, role, channel, action, selection, dry_run, expected, changed, outcome, run_id, reason, previous_hash, hash) VALUES (CAST(%(endpoint)s AS VARBINARY(1020)), CAST(%(chain)s AS VARBINARY(1020)), %(number)s, %(at)s, %(actor)s, %(role)s, %(channel)s, CAST(%(action)s AS VARBINARY(1020)), %(selection)s, %(dry_run)s, %(expected)s, %(changed)s, CAST(%(outcome)s AS VARBINARY(1020)), CAST(%(run_id)s AS VARBINARY(1020)), %(reason)s, CAST(%(previous_hash)s AS VARBINARY(1020)), CAST(%(hash)s AS VARBINARY(1020)))

INSERT INTO timeoutmgr_timeout_keys (endpoint, id, due, version, state, closed_at, maybe_sent, content) SELECT CAST(%(endpoint_)s AS VARBINARY(1020)) AS anon_1, CAST(%(id_)s AS VARBINARY(1020)) AS anon_2, %(due_)s AS anon_3, %(version_)s AS anon_4, CAST(%(state_)s AS VARBINARY(1020)) AS anon_5, %(closed_at_)s AS anon_6, %(maybe_sent_)s AS anon_7, CAST(%(content_)s AS VARBINARY(max)) AS anon_8 
WHERE NOT (EXISTS (SELECT 1 
FROM timeoutmgr_timeout_keys AS present WITH (UPDLOCK, HOLDLOCK, ROWLOCK) 
WHERE present.endpoint = CAST(%(endpoint_)s AS VARBINARY(1020)) AND present.id = CAST(%(id_)s AS VARBINARY(1020))))

UPDATE timeoutmgr_timeout_keys SET due=%(due)s, version=%(version)s WHERE timeoutmgr_timeout_keys.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_timeout_keys.id = CAST(%(id_)s AS VARBINARY(1020))

INSERT INTO timeoutmgr_timeouts (endpoint, due, id, destination, saga_id, message_id, headers, body, content_type, content_encoding, created, version, attempts, next_try, original_due, maybe_sent, run_id, hidden_by, place) VALUES (CAST(%(endpoint)s AS VARBINARY(1020)), %(due)s, CAST(%(id)s AS VARBINARY(1020)), CAST(%(destination)s AS VARBINARY(1020)), CAST(%(saga_id)s AS VARBINARY(1020)), CAST(%(message_id)s AS VARBINARY(1020)), %(headers)s, CAST(%(body)s AS VARBINARY(max)), CAST(%(content_type)s AS VARBINARY(1020)), CAST(%(content_encoding)s AS VARBINARY(1020)), %(created)s, %(version)s, %(attempts)s, %(next_try)s, %(original_due)s, %(maybe_sent)s, CAST(%(run_id)s AS VARBINARY(1020)), CAST(%(hidden_by)s AS VARBINARY(1020)), %(place)s)

SELECT TOP (%(param_1)s) timeoutmgr_timeouts.id, timeoutmgr_timeouts.created, timeoutmgr_timeouts.place 
FROM timeoutmgr_timeouts 
WHERE timeoutmgr_timeouts.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_timeouts.saga_id = CAST(%(saga)s AS VARBINARY(1020)) AND timeoutmgr_timeouts.id > CAST(%(after)s AS VARBINARY(1020)) ORDER BY timeoutmgr_timeouts.id

SELECT timeoutmgr_timeouts.due, timeoutmgr_timeouts.original_due, timeoutmgr_timeouts.id, timeoutmgr_timeouts.destination, timeoutmgr_timeouts.attempts, timeoutmgr_timeouts.run_id, timeoutmgr_timeouts.maybe_sent, timeoutmgr_timeouts.hidden_by, timeoutmgr_timeouts.created, timeoutmgr_timeouts.place, CASE WHEN (timeoutmgr_timeouts.headers LIKE '%' + %(headers_1)s + '%') THEN timeoutmgr_timeouts.headers END AS labelled 
FROM timeoutmgr_timeouts WITH (READCOMMITTEDLOCK, READPAST, UPDLOCK, ROWLOCK) 
WHERE timeoutmgr_timeouts.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_timeouts.saga_id = CAST(%(saga)s AS VARBINARY(1020)) AND timeoutmgr_timeouts.id IN (CAST(%(ids_1)s AS VARBINARY(1020)))

UPDATE timeoutmgr_timeout_keys SET state=CAST(%(state)s AS VARBINARY(1020)), closed_at=%(at_)s, maybe_sent=%(sent_)s WHERE timeoutmgr_timeout_keys.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_timeout_keys.id = CAST(%(id_)s AS VARBINARY(1020))

SELECT timeoutmgr_recurring.endpoint, timeoutmgr_recurring.name, timeoutmgr_recurring.every, timeoutmgr_recurring.configured_at, timeoutmgr_recurring.done_until, timeoutmgr_recurring.run_due, timeoutmgr_recurring.run_id, timeoutmgr_recurring.is_paused 
FROM timeoutmgr_recurring WITH (UPDLOCK, ROWLOCK) 
WHERE timeoutmgr_recurring.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_recurring.name = CAST(%(name_1)s AS VARBINARY(1020))

INSERT INTO timeoutmgr_recurring (name, every, configured_at, done_until, run_due, run_id, is_paused, endpoint) SELECT CAST(%(name_)s AS VARBINARY(1020)) AS anon_1, %(every_)s AS anon_2, %(configured_at_)s AS anon_3, %(done_until_)s AS anon_4, %(run_due_)s AS anon_5, CAST(%(run_id_)s AS VARBINARY(1020)) AS anon_6, %(is_paused_)s AS anon_7, CAST(%(endpoint_)s AS VARBINARY(1020)) AS anon_8 
WHERE NOT (EXISTS (SELECT 1 
FROM timeoutmgr_recurring AS present WITH (UPDLOCK, HOLDLOCK, ROWLOCK) 
WHERE present.endpoint = CAST(%(endpoint_)s AS VARBINARY(1020)) AND present.name = CAST(%(name_)s AS VARBINARY(1020))))

SELECT timeoutmgr_recurring.endpoint, timeoutmgr_recurring.name, timeoutmgr_recurring.every, timeoutmgr_recurring.configured_at, timeoutmgr_recurring.done_until, timeoutmgr_recurring.run_due, timeoutmgr_recurring.run_id, timeoutmgr_recurring.is_paused 
FROM timeoutmgr_recurring 
WHERE timeoutmgr_recurring.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) ORDER BY timeoutmgr_recurring.name

-- clears of sagas

SELECT timeoutmgr_cleared_sagas.saga_id 
FROM timeoutmgr_cleared_sagas WITH (UPDLOCK, ROWLOCK) 
WHERE timeoutmgr_cleared_sagas.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_cleared_sagas.saga_id = CAST(%(saga_id_1)s AS VARBINARY(1020))

INSERT INTO timeoutmgr_cleared_sagas (endpoint, saga_id) SELECT CAST(%(endpoint_)s AS VARBINARY(1020)) AS anon_1, CAST(%(saga_id_)s AS VARBINARY(1020)) AS anon_2 
WHERE NOT (EXISTS (SELECT 1 
FROM timeoutmgr_cleared_sagas AS present WITH (UPDLOCK, HOLDLOCK, ROWLOCK) 
WHERE present.endpoint = CAST(%(endpoint_)s AS VARBINARY(1020)) AND present.saga_id = CAST(%(saga_id_)s AS VARBINARY(1020))))

SELECT timeoutmgr_cleared_sagas.saga_id, timeoutmgr_cleared_sagas.order_id, timeoutmgr_cleared_sagas.cleared_at, timeoutmgr_cleared_sagas.sent, timeoutmgr_cleared_sagas.receiver, timeoutmgr_cleared_sagas.kept, timeoutmgr_cleared_sagas.channel 
FROM timeoutmgr_cleared_sagas 
WHERE timeoutmgr_cleared_sagas.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_cleared_sagas.saga_id IN (CAST(%(sagas_1)s AS VARBINARY(1020)))

INSERT INTO timeoutmgr_cleared_sagas (endpoint, saga_id, order_id, cleared_at, sent, receiver, kept, channel) VALUES (CAST(%(endpoint)s AS VARBINARY(1020)), CAST(%(saga_id)s AS VARBINARY(1020)), %(order_id)s, %(cleared_at)s, %(sent)s, %(receiver)s, %(kept)s, %(channel)s)

SELECT timeoutmgr_cleared_sagas.saga_id, timeoutmgr_cleared_sagas.order_id, timeoutmgr_cleared_sagas.cleared_at, timeoutmgr_cleared_sagas.sent, timeoutmgr_cleared_sagas.receiver, timeoutmgr_cleared_sagas.kept, timeoutmgr_cleared_sagas.channel 
FROM timeoutmgr_cleared_sagas 
WHERE timeoutmgr_cleared_sagas.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_cleared_sagas.saga_id IN (CAST(%(sagas_1)s AS VARBINARY(1020)), CAST(%(sagas_2)s AS VARBINARY(1020)))

UPDATE timeoutmgr_timeout_keys SET due=%(due_)s, closed_at=%(at_)s, content=CAST(%(content_)s AS VARBINARY(max)) WHERE timeoutmgr_timeout_keys.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_timeout_keys.id = CAST(%(id_)s AS VARBINARY(1020)) AND timeoutmgr_timeout_keys.content = CAST(%(known_)s AS VARBINARY(max))

INSERT INTO timeoutmgr_timeout_history (id, event, at, due, endpoint, destination, attempt, node, run_id, channel) OUTPUT inserted.sequence VALUES (CAST(%(id)s AS VARBINARY(1020)), CAST(%(event)s AS VARBINARY(1020)), %(at)s, %(due)s, CAST(%(endpoint)s AS VARBINARY(1020)), CAST(%(destination)s AS VARBINARY(1020)), %(attempt)s, CAST(%(node)s AS VARBINARY(1020)), CAST(%(run_id)s AS VARBINARY(1020)), %(channel)s)

-- housekeeping

SELECT TOP (%(param_1)s) timeoutmgr_timeout_keys.id 
FROM timeoutmgr_timeout_keys WITH (READCOMMITTEDLOCK, READPAST, UPDLOCK, ROWLOCK) 
WHERE timeoutmgr_timeout_keys.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_timeout_keys.closed_at IS NOT NULL AND timeoutmgr_timeout_keys.closed_at < %(before)s ORDER BY timeoutmgr_timeout_keys.closed_at

SELECT TOP (%(param_1)s) timeoutmgr_timeout_history.sequence 
FROM timeoutmgr_timeout_history WITH (READCOMMITTEDLOCK, READPAST, UPDLOCK, ROWLOCK) 
WHERE timeoutmgr_timeout_history.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_timeout_history.at IS NOT NULL AND timeoutmgr_timeout_history.at < %(before)s ORDER BY timeoutmgr_timeout_history.at

SELECT TOP (%(param_1)s) timeoutmgr_processes.owner 
FROM timeoutmgr_processes WITH (READCOMMITTEDLOCK, READPAST, UPDLOCK, ROWLOCK) 
WHERE timeoutmgr_processes.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_processes.heartbeat IS NOT NULL AND timeoutmgr_processes.heartbeat < %(before)s ORDER BY timeoutmgr_processes.heartbeat

SELECT TOP (%(param_1)s) timeoutmgr_cleared_sagas.saga_id 
FROM timeoutmgr_cleared_sagas WITH (READCOMMITTEDLOCK, READPAST, UPDLOCK, ROWLOCK) 
WHERE timeoutmgr_cleared_sagas.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_cleared_sagas.cleared_at IS NOT NULL AND timeoutmgr_cleared_sagas.cleared_at < %(before)s ORDER BY timeoutmgr_cleared_sagas.cleared_at

SELECT TOP (%(param_1)s) timeoutmgr_load.bucket 
FROM timeoutmgr_load WITH (READCOMMITTEDLOCK, READPAST, UPDLOCK, ROWLOCK) 
WHERE timeoutmgr_load.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_load.destination = CAST(%(destination_1)s AS VARBINARY(1020)) AND timeoutmgr_load.as_of IS NOT NULL AND timeoutmgr_load.as_of < %(before)s ORDER BY timeoutmgr_load.as_of

SELECT TOP (%(param_1)s) timeoutmgr_runs.run_id, (SELECT TOP (%(param_2)s) timeoutmgr_run_keys.no 
FROM timeoutmgr_run_keys 
WHERE timeoutmgr_run_keys.run_id = timeoutmgr_runs.run_id ORDER BY timeoutmgr_run_keys.no) AS anon_1 
FROM timeoutmgr_runs 
WHERE timeoutmgr_runs.kind = CAST(%(kind_1)s AS VARBINARY(1020)) AND timeoutmgr_runs.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND (timeoutmgr_runs.state IN (CAST(%(state_1_1)s AS VARBINARY(1020)), CAST(%(state_1_2)s AS VARBINARY(1020))) AND timeoutmgr_runs.ended < %(ended_1)s OR timeoutmgr_runs.state IN (CAST(%(state_2_1)s AS VARBINARY(1020)), CAST(%(state_2_2)s AS VARBINARY(1020))) AND timeoutmgr_runs.created < %(created_1)s) AND (SELECT TOP (%(param_2)s) timeoutmgr_run_keys.no 
FROM timeoutmgr_run_keys 
WHERE timeoutmgr_run_keys.run_id = timeoutmgr_runs.run_id ORDER BY timeoutmgr_run_keys.no) IS NOT NULL

SELECT (SELECT TOP (%(param_1)s) timeoutmgr_timeout_keys.closed_at 
FROM timeoutmgr_timeout_keys 
WHERE timeoutmgr_timeout_keys.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_timeout_keys.closed_at IS NOT NULL ORDER BY timeoutmgr_timeout_keys.closed_at) AS anon_1, (SELECT TOP (%(param_2)s) timeoutmgr_timeout_history.at 
FROM timeoutmgr_timeout_history 
WHERE timeoutmgr_timeout_history.endpoint = CAST(%(endpoint_2)s AS VARBINARY(1020)) AND timeoutmgr_timeout_history.at IS NOT NULL ORDER BY timeoutmgr_timeout_history.at) AS anon_2, (SELECT TOP (%(param_3)s) timeoutmgr_processes.heartbeat 
FROM timeoutmgr_processes 
WHERE timeoutmgr_processes.endpoint = CAST(%(endpoint_3)s AS VARBINARY(1020)) AND timeoutmgr_processes.heartbeat IS NOT NULL ORDER BY timeoutmgr_processes.heartbeat) AS anon_3, (SELECT TOP (%(param_4)s) timeoutmgr_cleared_sagas.cleared_at 
FROM timeoutmgr_cleared_sagas 
WHERE timeoutmgr_cleared_sagas.endpoint = CAST(%(endpoint_4)s AS VARBINARY(1020)) AND timeoutmgr_cleared_sagas.cleared_at IS NOT NULL ORDER BY timeoutmgr_cleared_sagas.cleared_at) AS anon_4, (SELECT TOP (%(param_5)s) timeoutmgr_load.as_of 
FROM timeoutmgr_load 
WHERE timeoutmgr_load.endpoint = CAST(%(endpoint_5)s AS VARBINARY(1020)) AND timeoutmgr_load.destination = CAST(%(destination_1)s AS VARBINARY(1020)) AND timeoutmgr_load.as_of IS NOT NULL ORDER BY timeoutmgr_load.as_of) AS anon_5

DELETE FROM timeoutmgr_processes WHERE timeoutmgr_processes.owner = CAST(%(owner_1)s AS VARBINARY(1020))

-- migration

SELECT count(*) AS count_1, min(timeoutmgr_timeouts.due) AS min_1, max(timeoutmgr_timeouts.due) AS max_1 
FROM timeoutmgr_timeouts 
WHERE timeoutmgr_timeouts.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_timeouts.due >= %(due_1)s AND timeoutmgr_timeouts.due < %(due_2)s AND timeoutmgr_timeouts.hidden_by IS NULL

SELECT TOP (%(param_1)s) timeoutmgr_timeouts.destination, count(*) AS count_1 
FROM timeoutmgr_timeouts 
WHERE timeoutmgr_timeouts.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_timeouts.due >= %(due_1)s AND timeoutmgr_timeouts.due < %(due_2)s AND timeoutmgr_timeouts.hidden_by IS NULL GROUP BY timeoutmgr_timeouts.destination

SELECT timeoutmgr_fencing_tokens.run_id 
FROM timeoutmgr_fencing_tokens 
WHERE timeoutmgr_fencing_tokens.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_fencing_tokens.state = CAST(%(state_1)s AS VARBINARY(1020))

SELECT timeoutmgr_pauses.destination 
FROM timeoutmgr_pauses 
WHERE timeoutmgr_pauses.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020))

SELECT timeoutmgr_timeouts.due, timeoutmgr_timeouts.id, DATALENGTH(timeoutmgr_timeouts.body) AS length_1 
FROM timeoutmgr_timeouts 
WHERE timeoutmgr_timeouts.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_timeouts.due >= %(due_1)s AND timeoutmgr_timeouts.due < %(due_2)s AND timeoutmgr_timeouts.hidden_by IS NULL ORDER BY timeoutmgr_timeouts.due, timeoutmgr_timeouts.id

UPDATE timeoutmgr_timeouts SET hidden_by=CAST(%(hidden_by)s AS VARBINARY(1020)) WHERE timeoutmgr_timeouts.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_timeouts.due >= %(due_1)s AND timeoutmgr_timeouts.due < %(due_2)s AND timeoutmgr_timeouts.hidden_by IS NULL AND (timeoutmgr_timeouts.due > %(due_3)s OR timeoutmgr_timeouts.due = %(due_4)s AND timeoutmgr_timeouts.id >= CAST(%(id_1)s AS VARBINARY(1020))) AND (timeoutmgr_timeouts.due < %(due_5)s OR timeoutmgr_timeouts.due = %(due_6)s AND timeoutmgr_timeouts.id <= CAST(%(id_2)s AS VARBINARY(1020)))

SELECT timeoutmgr_timeouts.maybe_sent, timeoutmgr_timeouts.due, timeoutmgr_timeouts.id, timeoutmgr_timeouts.destination, timeoutmgr_timeouts.saga_id, timeoutmgr_timeouts.created, timeoutmgr_timeouts.attempts, timeoutmgr_timeouts.message_id, timeoutmgr_timeouts.headers, timeoutmgr_timeouts.body, timeoutmgr_timeouts.content_type, timeoutmgr_timeouts.content_encoding, timeoutmgr_timeouts.original_due 
FROM timeoutmgr_timeouts 
WHERE timeoutmgr_timeouts.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND (timeoutmgr_timeouts.due > %(due_1)s OR timeoutmgr_timeouts.due = %(due_2)s AND timeoutmgr_timeouts.id >= CAST(%(id_1)s AS VARBINARY(1020))) AND (timeoutmgr_timeouts.due < %(due_3)s OR timeoutmgr_timeouts.due = %(due_4)s AND timeoutmgr_timeouts.id <= CAST(%(id_2)s AS VARBINARY(1020))) AND timeoutmgr_timeouts.hidden_by = CAST(%(hidden_by_1)s AS VARBINARY(1020)) ORDER BY timeoutmgr_timeouts.due, timeoutmgr_timeouts.id

SELECT timeoutmgr_fencing_tokens.state 
FROM timeoutmgr_fencing_tokens 
WHERE timeoutmgr_fencing_tokens.run_id = CAST(%(run_id_1)s AS VARBINARY(1020))

INSERT INTO timeoutmgr_fencing_tokens (run_id, endpoint, state, created) SELECT CAST(%(run_id_)s AS VARBINARY(1020)) AS anon_1, CAST(%(endpoint_)s AS VARBINARY(1020)) AS anon_2, CAST(%(state_)s AS VARBINARY(1020)) AS anon_3, %(created_)s AS anon_4 
WHERE NOT (EXISTS (SELECT 1 
FROM timeoutmgr_fencing_tokens AS present WITH (UPDLOCK, HOLDLOCK, ROWLOCK) 
WHERE present.run_id = CAST(%(run_id_)s AS VARBINARY(1020))))

SELECT timeoutmgr_fencing_tokens.state 
FROM timeoutmgr_fencing_tokens WITH (UPDLOCK, ROWLOCK) 
WHERE timeoutmgr_fencing_tokens.run_id = CAST(%(run_id_1)s AS VARBINARY(1020))

SELECT anon_1.id, anon_1.state, anon_1.content 
FROM (SELECT timeoutmgr_timeout_keys.id AS id, timeoutmgr_timeout_keys.state AS state, timeoutmgr_timeout_keys.content AS content 
FROM timeoutmgr_timeout_keys 
WHERE timeoutmgr_timeout_keys.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_timeout_keys.id IN (CAST(%(ids_1)s AS VARBINARY(1020)), CAST(%(ids_2)s AS VARBINARY(1020)))) AS anon_1

INSERT INTO timeoutmgr_timeouts (endpoint, due, id, destination, saga_id, message_id, headers, body, content_type, content_encoding, created, version, attempts, original_due, maybe_sent, run_id) VALUES (CAST(%(endpoint)s AS VARBINARY(1020)), %(due)s, CAST(%(id)s AS VARBINARY(1020)), CAST(%(destination)s AS VARBINARY(1020)), CAST(%(saga_id)s AS VARBINARY(1020)), CAST(%(message_id)s AS VARBINARY(1020)), %(headers)s, CAST(%(body)s AS VARBINARY(max)), CAST(%(content_type)s AS VARBINARY(1020)), CAST(%(content_encoding)s AS VARBINARY(1020)), %(created)s, %(version)s, %(attempts)s, %(original_due)s, %(maybe_sent)s, CAST(%(run_id)s AS VARBINARY(1020)))

DELETE FROM timeoutmgr_timeouts WHERE timeoutmgr_timeouts.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND (timeoutmgr_timeouts.due > %(due_1)s OR timeoutmgr_timeouts.due = %(due_2)s AND timeoutmgr_timeouts.id >= CAST(%(id_1)s AS VARBINARY(1020))) AND (timeoutmgr_timeouts.due < %(due_3)s OR timeoutmgr_timeouts.due = %(due_4)s AND timeoutmgr_timeouts.id <= CAST(%(id_2)s AS VARBINARY(1020))) AND timeoutmgr_timeouts.hidden_by = CAST(%(hidden_by_1)s AS VARBINARY(1020))

UPDATE timeoutmgr_fencing_tokens SET state=CAST(%(state)s AS VARBINARY(1020)) WHERE timeoutmgr_fencing_tokens.run_id = CAST(%(run_id_1)s AS VARBINARY(1020))

SELECT count(*) AS count_1 
FROM timeoutmgr_timeouts 
WHERE timeoutmgr_timeouts.endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND timeoutmgr_timeouts.hidden_by = CAST(%(hidden_by_1)s AS VARBINARY(1020))

-- delayed message store

SELECT [sales.delayed.version].version_num 
FROM [sales.delayed.version]

INSERT INTO [sales.delayed.marker] (endpoint) SELECT CAST(%(endpoint_)s AS VARBINARY(1020)) AS anon_1 
WHERE NOT (EXISTS (SELECT 1 
FROM [sales.delayed.marker] AS present WITH (UPDLOCK, HOLDLOCK, ROWLOCK) 
WHERE present.endpoint = CAST(%(endpoint_)s AS VARBINARY(1020))))

UPDATE [sales.delayed.marker] SET marker=CAST(%(marker)s AS VARBINARY(1020)), broker=%(broker)s, marker_confirmed=%(marker_confirmed)s WHERE [sales.delayed.marker].endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND [sales.delayed.marker].marker IS NULL

SELECT [sales.delayed.marker].marker, [sales.delayed.marker].broker, [sales.delayed.marker].marker_confirmed 
FROM [sales.delayed.marker] 
WHERE [sales.delayed.marker].endpoint = CAST(%(endpoint_1)s AS VARBINARY(1020)) AND [sales.delayed.marker].marker IS NOT NULL

INSERT INTO [sales.delayed] (due, id, destination, saga_id, message_id, headers, body, content_type, content_encoding, created, attempts, next_try) SELECT %(due_)s AS anon_1, CAST(%(id_)s AS VARBINARY(1020)) AS anon_2, CAST(%(destination_)s AS VARBINARY(1020)) AS anon_3, CAST(%(saga_id_)s AS VARBINARY(1020)) AS anon_4, CAST(%(message_id_)s AS VARBINARY(1020)) AS anon_5, %(headers_)s AS anon_6, CAST(%(body_)s AS VARBINARY(max)) AS anon_7, CAST(%(content_type_)s AS VARBINARY(1020)) AS anon_8, CAST(%(content_encoding_)s AS VARBINARY(1020)) AS anon_9, %(created_)s AS anon_10, %(attempts_)s AS anon_11, %(next_try_)s AS anon_12 
WHERE NOT (EXISTS (SELECT 1 
FROM [sales.delayed] AS present WITH (UPDLOCK, HOLDLOCK, ROWLOCK) 
WHERE present.id = CAST(%(id_)s AS VARBINARY(1020))))

SELECT TOP (%(limit)s) [sales.delayed].next_try, [sales.delayed].id, [sales.delayed].due, [sales.delayed].destination, [sales.delayed].saga_id, [sales.delayed].message_id, [sales.delayed].headers, CASE WHEN (DATALENGTH([sales.delayed].body) <= %(length_1)s) THEN [sales.delayed].body END AS body, [sales.delayed].content_type, [sales.delayed].content_encoding, [sales.delayed].created, [sales.delayed].attempts, [sales.delayed].claimed_by, [sales.delayed].claimed_until, DATALENGTH([sales.delayed].body) AS size 
FROM [sales.delayed] WITH (READCOMMITTEDLOCK, READPAST, UPDLOCK, ROWLOCK) 
WHERE [sales.delayed].next_try <= DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME()) ORDER BY [sales.delayed].next_try, [sales.delayed].id

SELECT [sales.delayed].id, [sales.delayed].body 
FROM [sales.delayed] 
WHERE [sales.delayed].id IN (CAST(%(ids_1)s AS VARBINARY(1020)))

DELETE FROM [sales.delayed] WHERE [sales.delayed].id = CAST(%(id_)s AS VARBINARY(1020))

UPDATE [sales.delayed] SET next_try=%(next_try_)s, attempts=([sales.delayed].attempts + %(attempts_1)s) WHERE [sales.delayed].id = CAST(%(id_)s AS VARBINARY(1020))

SELECT count(*) AS count_1 
FROM [sales.delayed]

SELECT anon_1.destination, count(*) AS count_1 
FROM (SELECT TOP (%(most)s) [sales.delayed].destination AS destination 
FROM [sales.delayed] ORDER BY [sales.delayed].next_try, [sales.delayed].id) AS anon_1 GROUP BY anon_1.destination

SELECT TOP (%(param_1)s) [sales.delayed].next_try 
FROM [sales.delayed] ORDER BY [sales.delayed].next_try
