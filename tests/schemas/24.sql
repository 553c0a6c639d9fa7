PRAGMA user_version = 24;
PRAGMA application_id = 1953721650;
CREATE TABLE claim (
	device_name TEXT NOT NULL, 
	problem TEXT NOT NULL, 
	config TEXT NOT NULL, 
	basis TEXT NOT NULL, 
	owner TEXT NOT NULL, 
	beat_at FLOAT NOT NULL, 
	attempts INTEGER DEFAULT '0' NOT NULL, 
	PRIMARY KEY (device_name, problem, config, basis)
)
 WITHOUT ROWID

;
CREATE TABLE measurement (
	id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	round INTEGER NOT NULL, 
	median_us FLOAT NOT NULL, 
	low_us FLOAT NOT NULL, 
	high_us FLOAT NOT NULL, 
	sm_clock_mhz FLOAT, 
	floor_us FLOAT NOT NULL, 
	cache TEXT DEFAULT 'clean' NOT NULL, 
	summary_of INTEGER, 
	slowed INTEGER, 
	final TEXT, 
	final_stamp INTEGER, 
	PRIMARY KEY (id), 
	UNIQUE (trial_id, round), 
	FOREIGN KEY(trial_id) REFERENCES trial (id), 
	FOREIGN KEY(run_id) REFERENCES run (id)
);
CREATE TABLE problem (
	id INTEGER NOT NULL, 
	op TEXT NOT NULL, 
	dtype TEXT NOT NULL, 
	m INTEGER NOT NULL, 
	n INTEGER NOT NULL, 
	k INTEGER NOT NULL, 
	flops INTEGER NOT NULL, 
	least_bytes INTEGER NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (op, dtype, m, n, k)
);
CREATE TABLE quarantine (
	device_name TEXT NOT NULL, 
	digest TEXT NOT NULL, 
	tools TEXT NOT NULL, 
	toolkit TEXT NOT NULL, 
	driver TEXT NOT NULL, 
	config TEXT NOT NULL, 
	problem TEXT NOT NULL, 
	outcome TEXT NOT NULL, 
	detail TEXT NOT NULL, 
	run_limit_seconds FLOAT, 
	times INTEGER NOT NULL, 
	last_at TEXT NOT NULL, 
	PRIMARY KEY (device_name, digest, tools)
)
 WITHOUT ROWID;
CREATE TABLE run (
	id INTEGER NOT NULL, 
	device_name TEXT NOT NULL, 
	device_uuid TEXT NOT NULL, 
	compute_capability TEXT NOT NULL, 
	driver TEXT NOT NULL, 
	toolkit TEXT NOT NULL, 
	flags TEXT NOT NULL, 
	version TEXT NOT NULL, 
	seed INTEGER NOT NULL, 
	started_at TEXT NOT NULL, 
	read_gbytes_per_s FLOAT NOT NULL, 
	copy_gbytes_per_s FLOAT NOT NULL, 
	gflops TEXT NOT NULL, 
	sms INTEGER, 
	PRIMARY KEY (id), 
	UNIQUE (id, device_name)
);
CREATE TABLE sample (
	measurement_id INTEGER NOT NULL, 
	ordinal INTEGER NOT NULL, 
	us FLOAT NOT NULL, 
	PRIMARY KEY (measurement_id, ordinal), 
	FOREIGN KEY(measurement_id) REFERENCES measurement (id)
)
 WITHOUT ROWID;
CREATE TABLE source (
	digest TEXT NOT NULL, 
	kernel TEXT NOT NULL, 
	text TEXT NOT NULL, 
	dtype TEXT NOT NULL, 
	threads INTEGER NOT NULL, 
	rows_per_block INTEGER NOT NULL, 
	smem_bytes INTEGER NOT NULL, 
	columns_per_block INTEGER DEFAULT '0' NOT NULL, 
	splits INTEGER DEFAULT '1' NOT NULL, 
	flat_splits INTEGER DEFAULT '64' NOT NULL, 
	persistent INTEGER DEFAULT '0' NOT NULL, 
	PRIMARY KEY (digest)
);
CREATE TABLE trial (
	id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	device_name TEXT NOT NULL, 
	problem_id INTEGER NOT NULL, 
	family TEXT NOT NULL, 
	config TEXT NOT NULL, 
	tunables TEXT NOT NULL, 
	basis TEXT NOT NULL, 
	source_digest TEXT NOT NULL, 
	outcome TEXT NOT NULL, 
	detail TEXT NOT NULL, 
	registers INTEGER, 
	local_bytes INTEGER, 
	smem_bytes INTEGER, 
	blocks_per_sm INTEGER, 
	spill_bytes INTEGER, 
	guideline_broken TEXT, 
	verdict_correct INTEGER, 
	verdict_worst_ratio FLOAT, 
	verdict_detail TEXT, 
	floor_us FLOAT NOT NULL, 
	compile_seconds FLOAT NOT NULL, 
	total_seconds FLOAT NOT NULL, 
	ended_at TEXT NOT NULL, 
	compile_limit_seconds FLOAT, 
	run_limit_seconds FLOAT, 
	full_verdict TEXT, 
	rows_per_block INTEGER, 
	splits INTEGER, 
	cache TEXT DEFAULT 'clean' NOT NULL, 
	is_between INTEGER DEFAULT '0' NOT NULL, 
	superseded INTEGER DEFAULT '0' NOT NULL, 
	strategy TEXT, 
	stamp INTEGER DEFAULT '0' NOT NULL, 
	first_basis TEXT, 
	verified_code TEXT, 
	space_configurations INTEGER, 
	PRIMARY KEY (id), 
	UNIQUE (device_name, problem_id, config, basis), 
	FOREIGN KEY(run_id, device_name) REFERENCES run (id, device_name), 
	FOREIGN KEY(problem_id) REFERENCES problem (id), 
	FOREIGN KEY(source_digest) REFERENCES source (digest)
);
CREATE TABLE vendor_measurement (
	id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	problem_id INTEGER NOT NULL, 
	round INTEGER NOT NULL, 
	library TEXT NOT NULL, 
	library_version INTEGER NOT NULL, 
	routine TEXT NOT NULL, 
	verdict_correct INTEGER NOT NULL, 
	verdict_worst_ratio FLOAT NOT NULL, 
	verdict_detail TEXT NOT NULL, 
	median_us FLOAT NOT NULL, 
	low_us FLOAT NOT NULL, 
	high_us FLOAT NOT NULL, 
	sm_clock_mhz FLOAT, 
	cache TEXT DEFAULT 'clean' NOT NULL, 
	summary_of INTEGER, 
	slowed INTEGER, 
	final TEXT, 
	final_stamp INTEGER, 
	PRIMARY KEY (id), 
	UNIQUE (run_id, problem_id, round, library), 
	FOREIGN KEY(run_id) REFERENCES run (id), 
	FOREIGN KEY(problem_id) REFERENCES problem (id)
);
CREATE TABLE vendor_sample (
	measurement_id INTEGER NOT NULL, 
	ordinal INTEGER NOT NULL, 
	us FLOAT NOT NULL, 
	PRIMARY KEY (measurement_id, ordinal), 
	FOREIGN KEY(measurement_id) REFERENCES vendor_measurement (id)
)
 WITHOUT ROWID;
CREATE VIEW best AS SELECT 1;
