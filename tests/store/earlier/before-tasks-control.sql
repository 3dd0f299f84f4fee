-- control.db as the code of commit 2f97d67 wrote it
PRAGMA page_size=4096;
BEGIN TRANSACTION;
DROP TABLE IF EXISTS meta;
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES('schema_version','1');
COMMIT TRANSACTION;
