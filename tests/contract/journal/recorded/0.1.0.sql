BEGIN TRANSACTION;
CREATE TABLE begun (
    pod_uid TEXT NOT NULL, containers TEXT NOT NULL, device TEXT, at REAL NOT NULL, fault_at REAL NOT NULL
);
INSERT INTO "begun" VALUES('uid-1','["trainer"]','GPU-0',1000.0,999.5);
INSERT INTO "begun" VALUES('uid-1','["trainer"]','GPU-0',1001.0,999.5);
CREATE TABLE documents (key TEXT PRIMARY KEY, body TEXT NOT NULL);
INSERT INTO "documents" VALUES('epoch','8');
INSERT INTO "documents" VALUES('cursor','boot-1,42');
CREATE TABLE intents (
    id TEXT PRIMARY KEY, body TEXT NOT NULL, opened_at REAL NOT NULL, closed_at REAL, outcome TEXT
);
INSERT INTO "intents" VALUES('swap','{"version": 2, "id": "swap", "namespace": "default", "pod": "trainer-0", "uid": "uid-1", "container": "trainer", "sandbox": "sandbox-1", "reason": "Xid31", "createdAt": 1.0, "grace": 0.0, "strategy": "swap", "old": "old", "oldAttempt": 0, "order": "stop-first"}',1.0,NULL,NULL);
INSERT INTO "intents" VALUES('rerun','{"version": 2, "id": "rerun", "namespace": "default", "pod": "trainer-0", "uid": "uid-1", "container": "trainer", "sandbox": "sandbox-1", "reason": "Xid31", "createdAt": 2.0, "grace": 1.5, "strategy": "rerun", "plan": [{"name": "trainer", "role": "main", "old": ["c0"], "oldAttempt": 3, "startupProbe": true}], "trigger": "c0"}',2.0,NULL,NULL);
CREATE TABLE replays (
    intent TEXT PRIMARY KEY, begun INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0, reason TEXT
);
CREATE TABLE rounds (
    round TEXT NOT NULL, pod_uid TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (round, pod_uid)
);
INSERT INTO "rounds" VALUES('team/r1','uid-1','{"version": 1, "namespace": "default", "pod": "trainer-0", "uid": "uid-1", "boot": "boot-1", "renewedAt": 10.0, "writtenAt": 1001.0, "names": ["trainer"], "released": false, "order": {"round": "team/r1", "attempt": 2, "pod": "uid-1", "kind": "Restart", "causeCode": "Exit1", "causeMessage": "it ended", "holdSeconds": 30.0, "containers": ["trainer"], "strategy": "swap", "grace": null}, "stepResult": {"phase": "Stopped", "reason": "Killed", "detail": "at once", "seconds": {"stop": 0.5}, "unheldSeconds": 0.25}}');
CREATE INDEX open_intents ON intents (opened_at) WHERE closed_at IS NULL;
CREATE INDEX closed_intents ON intents (closed_at) WHERE closed_at IS NOT NULL;
CREATE INDEX begun_by_time ON begun (at);
COMMIT;
PRAGMA user_version = 1;
