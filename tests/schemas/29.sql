PRAGMA user_version = 29
;
PRAGMA application_id = 1953721650
;
CREATE TABLE lease (
	device_name TEXT NOT NULL, 
	problem TEXT NOT NULL, 
	owner TEXT NOT NULL, 
	expires_at FLOAT NOT NULL, 
	config TEXT, 
	suspect TEXT, 
	deaths INTEGER NOT NULL, 
	PRIMARY KEY (device_name, problem)
)
 WITHOUT ROWID
;
CREATE TABLE paragraph (
	"key" TEXT NOT NULL, 
	text TEXT NOT NULL, 
	PRIMARY KEY ("key")
)
;
CREATE TABLE problem (
	id INTEGER NOT NULL, 
	op TEXT NOT NULL, 
	dtype TEXT NOT NULL, 
	m INTEGER NOT NULL, 
	n INTEGER NOT NULL, 
	k INTEGER NOT NULL, 
	flops INTEGER NOT NULL, 
	least_bytes INTEGER NOT NULL, 
	batch INTEGER DEFAULT '1' NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (op, dtype, m, n, k, batch)
)
;
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
 WITHOUT ROWID
;
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
)
;
CREATE TABLE source (
	digest TEXT NOT NULL, 
	kernel TEXT NOT NULL, 
	paragraphs TEXT NOT NULL, 
	dtype TEXT NOT NULL, 
	threads INTEGER NOT NULL, 
	rows_per_block INTEGER NOT NULL, 
	smem_bytes INTEGER NOT NULL, 
	columns_per_block INTEGER DEFAULT '0' NOT NULL, 
	splits INTEGER DEFAULT '1' NOT NULL, 
	flat_splits INTEGER DEFAULT '64' NOT NULL, 
	persistent INTEGER DEFAULT '0' NOT NULL, 
	batched INTEGER DEFAULT '0' NOT NULL, 
	PRIMARY KEY (digest)
)
;
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
	search_ended TEXT, 
	PRIMARY KEY (id), 
	UNIQUE (device_name, problem_id, config, basis), 
	FOREIGN KEY(run_id, device_name) REFERENCES run (id, device_name), 
	FOREIGN KEY(problem_id) REFERENCES problem (id), 
	FOREIGN KEY(source_digest) REFERENCES source (digest)
)
;
CREATE INDEX newest_of_family ON trial (cache, device_name, family, stamp, basis) WHERE superseded = 0
;
CREATE INDEX newest_stamp ON trial (stamp)
;
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
)
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
)
;
CREATE TABLE vendor_sample (
	measurement_id INTEGER NOT NULL, 
	ordinal INTEGER NOT NULL, 
	us FLOAT NOT NULL, 
	PRIMARY KEY (measurement_id, ordinal), 
	FOREIGN KEY(measurement_id) REFERENCES vendor_measurement (id)
)
 WITHOUT ROWID
;
CREATE TABLE sample (
	measurement_id INTEGER NOT NULL, 
	ordinal INTEGER NOT NULL, 
	us FLOAT NOT NULL, 
	PRIMARY KEY (measurement_id, ordinal), 
	FOREIGN KEY(measurement_id) REFERENCES measurement (id)
)
 WITHOUT ROWID
;
CREATE VIEW best AS
WITH known AS (
  SELECT trial.*,
         first_value(basis) OVER
         (PARTITION BY device_name, problem_id, family, cache ORDER BY stamp DESC, basis DESC) AS current_basis,
         min(is_between) OVER (PARTITION BY device_name, problem_id, cache) AS untuned
  FROM trial WHERE superseded = 0
), contender AS (
  SELECT known.*, measurement.run_id AS timed_in, measurement.floor_us AS least_us, round, median_us, low_us, high_us,
         max(round) OVER (PARTITION BY known.id) AS last_round
  FROM known JOIN measurement ON measurement.trial_id = known.id AND measurement.cache = known.cache
  WHERE basis = current_basis AND outcome = 'ok' AND verdict_correct = 1
), racing AS (
  SELECT *, first_value(high_us) OVER in_order AS leader_high_us, first_value(median_us) OVER in_order AS leader_us,
         first_value(round) OVER in_order AS leader_round
  FROM contender
  WHERE round = last_round
  WINDOW in_order AS (
    PARTITION BY device_name, problem_id, cache
    ORDER BY CASE round WHEN 0 THEN 1.05 * median_us ELSE median_us END, high_us, config
  )
), placed AS (
  SELECT *, count(*) OVER (PARTITION BY device_name, problem_id, cache) AS ties,
         row_number() OVER
         (PARTITION BY device_name, problem_id, cache ORDER BY registers NULLS FIRST, smem_bytes NULLS FIRST, config)
         AS place
  FROM racing
  WHERE low_us <= leader_high_us AND median_us <= 1.05 * leader_us AND round = leader_round
)
SELECT placed.device_name AS device, placed.family, op, dtype, m, n, k, batch, tunables AS parameters,
       median_us, low_us, high_us, least_us AS floor_us,
       least_bytes / median_us * 1e-3 AS gbytes_per_s,
       100 * least_us / median_us AS percent_of_floor,
       ties, CAST(placed.basis <> (
         SELECT latest.basis FROM trial AS latest
         WHERE latest.device_name = placed.device_name AND latest.family = placed.family
               AND latest.cache = placed.cache AND latest.superseded = 0
         ORDER BY latest.stamp DESC, latest.basis DESC LIMIT 1
       ) AS INTEGER) AS stale,
       CAST(full_verdict IS NOT NULL AS INTEGER) AS verified_in_full, round,
       config, registers, smem_bytes, source_digest,
       placed.id AS trial_id, timed_in AS run_id,
       compute_capability, driver, toolkit, flags, version, started_at AS tuned_at, placed.cache,
       placed.strategy, untuned AS is_between
FROM placed JOIN problem ON problem.id = placed.problem_id JOIN run ON run.id = timed_in
WHERE place = 1
;
