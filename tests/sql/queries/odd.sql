SELECT a.op, count(DISTINCT b.name), count(*) FROM python.comm_collective a JOIN python.trace_event b ON a._rank = b._rank AND a.global_step = b.global_step GROUP BY a.op

SELECT op, sum(count(DISTINCT bytes)) OVER () AS t FROM python.comm_collective GROUP BY op

SELECT op FROM python.comm_collective GROUP BY op HAVING count(DISTINCT _rank) > 2

SELECT upper(op) AS u, bytes % 2 AS p, count(*) FROM python.comm_collective GROUP BY ROLLUP (u, p)

SELECT upper(op) AS u, count(*), grouping(upper(op)) FROM python.comm_collective GROUP BY GROUPING SETS ((upper(op)), ())

SELECT arg_max(_rank, bytes) FROM python.comm_collective WHERE bytes < 10 AND _rank = 3

SELECT op, arg_min(start_ns, duration_ms), arg_max(duration_ms, start_ns) FROM python.comm_collective GROUP BY op

SELECT count(DISTINCT (op, bytes)) FROM python.comm_collective

SELECT count(DISTINCT NULL), count(DISTINCT 1) FROM python.comm_collective

SELECT list(DISTINCT op ORDER BY op DESC NULLS LAST) FROM python.comm_collective

SELECT op, count(DISTINCT bytes) AS n FROM python.comm_collective GROUP BY op ORDER BY n DESC, op LIMIT 3

SELECT DISTINCT op, count(DISTINCT bytes) AS n FROM python.comm_collective GROUP BY op

SELECT op AS bytes, count(DISTINCT bytes) FROM python.comm_collective GROUP BY op

SELECT _rank, avg(n) FROM (SELECT _rank, global_step, count(DISTINCT op) AS n FROM python.comm_collective GROUP BY ALL) GROUP BY _rank

WITH a AS (SELECT _rank, global_step, sum(bytes) AS s FROM python.comm_collective GROUP BY ALL), b AS (SELECT _rank, global_step, count(*) AS n FROM python.trace_event GROUP BY ALL) SELECT a._rank, sum(s * n) FROM a JOIN b USING (_rank, global_step) GROUP BY a._rank

WITH a AS (SELECT _rank, max(bytes) AS m FROM python.comm_collective GROUP BY _rank) SELECT c._rank, c.op FROM python.comm_collective c JOIN a ON c._rank = a._rank AND c.bytes = a.m

SELECT x._rank, y._rank, count(*) FROM python.comm_collective x FULL JOIN python.trace_event y ON x._rank = y._rank AND x.bytes = y.span_id GROUP BY ALL

SELECT coalesce(x._rank, y._rank) AS r, count(*) FROM python.comm_collective x FULL JOIN python.trace_event y ON x._rank = y._rank AND x.bytes = y.span_id GROUP BY 1

SELECT _rank, count(*) FROM python.comm_collective x FULL JOIN python.trace_event y USING (_rank, global_step) GROUP BY _rank

SELECT _rank, count(*) FROM python.comm_collective x RIGHT JOIN python.trace_event y USING (_rank, global_step) GROUP BY _rank

SELECT x._rank, z.status FROM python.comm_collective x LEFT JOIN python.trace_event y ON x._rank = y._rank AND x.bytes = y.span_id LEFT JOIN process.rank z ON y._rank = z._rank

SELECT count(*) FROM python.comm_collective a, python.comm_collective b, python.comm_collective c WHERE a._rank = b._rank AND b._rank = c._rank AND a.bytes = b.bytes AND c.bytes = a.bytes AND a.global_step = 1

SELECT count(*) FROM python.comm_collective a, python.comm_collective b WHERE a._rank = b._rank OR a.bytes = b.bytes

SELECT a._rank FROM python.comm_collective a JOIN python.comm_collective b ON a._rank = b._rank + 0 AND a.seq = b.seq

SELECT sum(a.bytes) FROM python.comm_collective a SEMI JOIN python.trace_event b ON a._rank = b._rank AND b.name IS NOT NULL

SELECT a._rank, count(*) FROM python.comm_collective a ANTI JOIN python.trace_event b ON a._rank = b._rank AND a.bytes = b.span_id GROUP BY ALL

SELECT n.host, sum(c.bytes), count(DISTINCT c.op) FROM cluster.nodes n LEFT JOIN python.comm_collective c ON n.rank = c._rank GROUP BY n.host

SELECT n.rank, r.status FROM cluster.nodes n LEFT JOIN process.rank r ON n.rank = r._rank WHERE r._rank IS NULL

SELECT op, _rank FROM python.comm_collective WHERE _rank NOT IN (SELECT rank FROM process.exit)

SELECT op, (SELECT count(*) FROM python.trace_event t WHERE t._rank = c._rank) FROM python.comm_collective c WHERE bytes > 1

SELECT op FROM python.comm_collective c WHERE bytes = (SELECT max(bytes) FROM python.comm_collective d WHERE d.op = c.op)

SELECT op FROM python.comm_collective c WHERE EXISTS (SELECT 1 FROM python.trace_event t WHERE t._rank = c._rank AND t.global_step > c.global_step)

SELECT * FROM (SELECT op, bytes, row_number() OVER (PARTITION BY op ORDER BY bytes DESC, start_ns, _rank, seq) AS n FROM python.comm_collective) WHERE n <= 2

SELECT op, bytes FROM python.comm_collective QUALIFY rank() OVER (PARTITION BY op ORDER BY bytes DESC) = 1

SELECT _rank, op FROM python.comm_collective QUALIFY dense_rank() OVER (PARTITION BY _rank ORDER BY bytes DESC) = 1

SELECT _rank, global_step, sum(bytes) - lag(sum(bytes)) OVER (PARTITION BY _rank ORDER BY global_step) AS d FROM python.comm_collective GROUP BY _rank, global_step

SELECT global_step, max(s) / nullif(min(s), 0) FROM (SELECT _rank, global_step, sum(bytes) AS s FROM python.comm_collective GROUP BY ALL) GROUP BY global_step

SELECT op FROM python.comm_collective EXCEPT SELECT name FROM python.trace_event

SELECT op, bytes FROM python.comm_collective UNION SELECT name, span_id FROM python.trace_event ORDER BY 1, 2 LIMIT 7

(SELECT op FROM python.comm_collective ORDER BY op LIMIT 3) UNION ALL (SELECT name FROM python.trace_event ORDER BY name LIMIT 2)

SELECT op, bytes FROM python.comm_collective INTERSECT ALL SELECT op, bytes FROM python.comm_collective WHERE _rank < 3

WITH RECURSIVE r(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM r WHERE i < 5) SELECT r.i, count(c.op) FROM r LEFT JOIN python.comm_collective c ON c.global_step = r.i GROUP BY r.i

SELECT s.i, count(*) FROM range(5) s(i) JOIN python.comm_collective c ON c.global_step = s.i GROUP BY ALL

SELECT v.x, count(c.op) FROM (VALUES (0), (1), (9)) v(x) LEFT JOIN python.comm_collective c ON c._rank = v.x GROUP BY ALL

SELECT unnest([op, pg_name]) AS u, _rank FROM python.comm_collective WHERE bytes > 1

SELECT u, count(*) FROM (SELECT unnest([op, pg_name]) AS u, _rank FROM python.comm_collective) GROUP BY u

SELECT _rank, list(op ORDER BY start_ns, seq, op) FROM python.comm_collective GROUP BY _rank

SELECT op, quantile_cont(bytes, [0.1, 0.9]) FROM python.comm_collective GROUP BY op

SELECT mode(op), histogram(op), approx_count_distinct(op), entropy(op) FROM python.comm_collective

SELECT max(bytes) FILTER (WHERE op = (SELECT min(op) FROM python.comm_collective)) FROM python.comm_collective

SELECT max(op, 2), min_by(op, bytes, 2), max(bytes, 3) FROM python.comm_collective

SELECT sum(bytes) OVER (ORDER BY _rank, start_ns, seq, bytes ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) FROM python.comm_collective WHERE bytes < 10

SELECT COLUMNS('.*_ms') FROM python.comm_collective WHERE bytes > 1

SELECT min(COLUMNS('.*_ms')) FROM python.comm_collective

SELECT * EXCLUDE (op) REPLACE (bytes + 1 AS bytes) FROM python.comm_collective WHERE _rank = 1 ORDER BY ALL LIMIT 3

FROM python.comm_collective SELECT op WHERE bytes > 1

SELECT op, count(*) FROM python.comm_collective WHERE op SIMILAR TO 'b.*' OR regexp_matches(op, '^a') GROUP BY op

SELECT count(*) FROM python.comm_collective c, LATERAL (SELECT c.bytes + 1 AS x) l WHERE l.x > 2

SELECT a.op FROM python.comm_collective a ASOF JOIN python.trace_event b ON a._rank = b._rank AND a.start_ns >= b.time

SELECT op, bytes > (SELECT avg(bytes) FROM python.comm_collective WHERE bytes < 100) AS big, count(*) FROM python.comm_collective GROUP BY ALL

SELECT _rank, (SELECT max(global_step) FROM python.comm_collective) - max(global_step) AS behind FROM python.comm_collective GROUP BY _rank

SELECT CASE WHEN count(*) > (SELECT count(*) FROM python.trace_event) THEN 'more' ELSE 'less' END FROM python.comm_collective

SELECT _host, _node_rank, count(DISTINCT _rank) FROM python.comm_collective WHERE _host = 'h1' GROUP BY ALL

SELECT any_value(op) FILTER (WHERE op = 'barrier') FROM python.comm_collective

SELECT string_agg(op, ',' ORDER BY op) FILTER (WHERE bytes > 1) FROM python.comm_collective

SELECT op, count(*) FROM python.comm_collective GROUP BY op HAVING op = 'barrier' OR op IS NULL

SELECT global_step // 2 AS b, avg(bytes), median(duration_ms) FROM python.comm_collective GROUP BY b HAVING b > 0 ORDER BY b

SELECT sum(x) FROM (SELECT bytes AS x FROM python.comm_collective UNION ALL SELECT span_id FROM python.trace_event)

SELECT x._rank, x.op FROM (SELECT * FROM python.comm_collective WHERE bytes > 1) x JOIN (SELECT * FROM python.trace_event) y ON x._rank = y._rank AND x.bytes = y.span_id

SELECT "OP", BYTES FROM PYTHON.COMM_COLLECTIVE WHERE "_RANK" = 1

SELECT comm_collective.op, global.python.comm_collective.bytes FROM global.python.comm_collective WHERE python.comm_collective._rank = 0

SELECT DISTINCT ON (_rank) _rank, op FROM python.comm_collective ORDER BY _rank, start_ns DESC, seq, bytes, op

SELECT op, sum(sum(bytes)) OVER (PARTITION BY op) FROM python.comm_collective GROUP BY op, _rank

SELECT op, bytes, count(*) FROM python.comm_collective GROUP BY CUBE (op, bytes) HAVING grouping(op, bytes) = 3

SELECT op FROM python.comm_collective LIMIT 0

SELECT count(*) FROM python.comm_collective LIMIT 0

SELECT _rank, count(*) AS n FROM python.comm_collective GROUP BY _rank ORDER BY n DESC, _rank LIMIT $k

SELECT _rank, stddev(duration_ms) FROM python.comm_collective WHERE duration_ms < 1e5 GROUP BY _rank

SELECT bool_and(bytes > 0), bit_or(seq), bit_xor(seq), product(2) FROM python.comm_collective WHERE seq >= 0

SELECT first(op ORDER BY start_ns, seq, op), last(op ORDER BY start_ns, seq, op) FROM python.comm_collective

SELECT covar_pop(bytes, seq), corr(duration_ms, bytes), regr_slope(bytes, seq) FROM python.comm_collective WHERE abs(bytes) < 100 AND isfinite(duration_ms) AND abs(duration_ms) < 1000

SELECT _rank, count(*) FROM gpu.utilization GROUP BY _rank

SELECT a._rank, b.device_id FROM process.rank a FULL JOIN gpu.devices b USING (_rank)

SELECT a._rank, count(*) FROM gpu.utilization a JOIN gpu.devices b ON a._rank IS NOT DISTINCT FROM b._rank GROUP BY a._rank

SELECT _rank FROM process.kmsg UNION SELECT _rank FROM process.rank

SELECT a.level, count(*) FROM process.kmsg a LEFT JOIN process.rank b ON a._rank = b._rank GROUP BY a.level

SELECT DISTINCT _rank, level FROM process.kmsg

SELECT _rank, rank() OVER (PARTITION BY _rank ORDER BY timestamp) AS r FROM process.kmsg

SELECT _rank, count(*) FROM (SELECT rank AS _rank, _rank AS rank FROM python.comm_collective) GROUP BY _rank

SELECT rank, count(*) FROM (SELECT rank AS _rank, _rank AS rank FROM python.comm_collective) WHERE _rank = 3 GROUP BY rank

SELECT _rank, n FROM (SELECT _rank % 2 AS _rank, count(*) AS n FROM python.comm_collective GROUP BY ALL) WHERE _rank = 1

SELECT _host, n FROM (SELECT op AS _host, count(*) AS n FROM python.comm_collective GROUP BY ALL) WHERE _host = 'barrier'

SELECT q._rank, q.bytes FROM (SELECT bytes AS _rank, _rank AS bytes FROM python.comm_collective) q JOIN cluster.nodes n ON n.rank = q.bytes WHERE q._rank = 1

WITH comm_collective AS (SELECT _rank, op FROM python.comm_collective WHERE bytes > 1) SELECT comm_collective.op FROM comm_collective WHERE comm_collective._rank IN (1, 3)

WITH a AS (SELECT op, bytes FROM python.comm_collective), b AS (WITH a AS (SELECT name AS op, span_id AS bytes FROM python.trace_event) SELECT * FROM a WHERE bytes > 0) SELECT a.op, count(*) FROM a JOIN b ON a.bytes = b.bytes GROUP BY a.op

SELECT count(DISTINCT duration_ms), sum(DISTINCT CASE WHEN duration_ms < 100 THEN seq END), min(DISTINCT duration_ms) FROM python.comm_collective

SELECT count(DISTINCT CASE WHEN bytes > 0 THEN 0.0::DOUBLE ELSE -0.0::DOUBLE END) FROM python.comm_collective

SELECT op, count(DISTINCT duration_ms) FILTER (WHERE bytes > 0), count(*) FILTER (WHERE bytes > 0) FROM python.comm_collective GROUP BY ROLLUP (op)

SELECT max(start_ns), arg_max(start_ns, duration_ms) IS NULL AS x FROM python.comm_collective WHERE duration_ms IS NULL

SELECT arg_max(duration_ms, duration_ms), arg_min(duration_ms, duration_ms), arg_max(bytes, bytes) FILTER (WHERE bytes < 5) FROM python.comm_collective WHERE NOT isnan(duration_ms) OR duration_ms IS NULL

SELECT arg_max(seq, bytes) FROM python.comm_collective WHERE false

SELECT op, sum(bytes), grouping(op) FROM python.comm_collective WHERE false GROUP BY ROLLUP (op)

SELECT count(*), sum(bytes) FROM python.comm_collective WHERE false GROUP BY GROUPING SETS ((), ())

SELECT op, count(*) FROM python.comm_collective GROUP BY GROUPING SETS ((op), (op), ())

SELECT op, op IS NULL AS o, count(*), grouping(op) FROM python.comm_collective GROUP BY CUBE (op)

SELECT x.op FROM (SELECT * FROM python.comm_collective) x WHERE x.bytes IN (SELECT q.span_id FROM (SELECT * FROM python.trace_event) q)

SELECT c.attributes, count(*) FROM (SELECT * FROM python.trace_event) c GROUP BY 1

WITH c AS (SELECT * FROM python.comm_collective) SELECT op FROM c UNION ALL SELECT pg_name FROM c

WITH c AS (SELECT * FROM python.comm_collective ORDER BY start_ns) SELECT count(op) FROM c

SELECT b AS a, a AS b FROM (SELECT op AS a, pg_name AS b FROM python.comm_collective) WHERE a = 'barrier'

SELECT op AS pg_name, pg_name AS op, count(*) FROM python.comm_collective WHERE op = 'barrier' GROUP BY ALL

SELECT q.op, q.n FROM (SELECT pg_name AS op, count(*) AS n FROM python.comm_collective GROUP BY pg_name HAVING count(*) > 1) q WHERE q.op = 'a'

SELECT * FROM (SELECT op, row_number() OVER (PARTITION BY _rank ORDER BY start_ns, seq, bytes, op) AS i, _rank FROM python.comm_collective) WHERE _rank = 4 AND i = 1

SELECT * FROM (SELECT DISTINCT ON (op) op, bytes FROM python.comm_collective ORDER BY op, bytes, _rank) WHERE bytes > 1

SELECT _rank, sum(bytes) FROM python.comm_collective GROUP BY _rank HAVING sum(bytes) > (SELECT avg(s) FROM (SELECT sum(bytes) AS s FROM python.comm_collective GROUP BY _rank))

SELECT op FROM python.comm_collective ORDER BY (SELECT max(seq) FROM python.comm_collective), op, bytes, seq LIMIT 4

SELECT count(*) FROM python.comm_collective a JOIN python.trace_event b ON a._rank = b._rank AND a.bytes > (SELECT min(span_id) FROM python.trace_event)

SELECT CASE WHEN bytes > (SELECT median(bytes) FROM python.comm_collective) THEN 'hi' ELSE coalesce((SELECT min(op) FROM python.comm_collective WHERE bytes > 99999999999999), 'none') END AS k, count(*) FROM python.comm_collective GROUP BY 1

SELECT a._rank, b._rank AS r, c._rank AS s FROM process.rank a LEFT JOIN python.comm_collective b USING (_rank) RIGHT JOIN process.exit c USING (_rank)

SELECT _rank, count(*) FROM process.rank a LEFT JOIN python.comm_collective b USING (_rank) FULL JOIN process.exit c USING (_rank) GROUP BY _rank

SELECT a._rank, count(*) FROM python.comm_collective a, python.trace_event b, process.exit c WHERE a._rank = b._rank AND c._rank = a._rank AND a.global_step = b.global_step AND c.code = a.bytes GROUP BY 1

SELECT a._rank, count(b.op) FROM process.rank a LEFT JOIN python.comm_collective b ON b._rank = a._rank AND b.bytes > 1 WHERE a._rank <> 2 GROUP BY 1

SELECT a._rank FROM python.comm_collective a WHERE a._rank = (SELECT max(_rank) FROM python.comm_collective)

SELECT "A"._RANK, count(*) FROM python.comm_collective AS "A" JOIN python.trace_event AS "b" ON "a"."_rank" = B._rank AND a.global_step = b.global_step GROUP BY 1

SELECT rank.status, count(*) FROM process.rank GROUP BY 1

SELECT c.op.x FROM (SELECT struct_pack(x := op) AS op, _rank FROM python.comm_collective) c WHERE c._rank = 1

SELECT s.k, count(*) FROM (SELECT struct_pack(k := op, b := bytes) AS s FROM python.comm_collective) GROUP BY 1

SELECT op, avg(bytes::DECIMAL(18,2)), sum(bytes::DECIMAL(18,2)), min(bytes::DECIMAL(18,2)) FROM python.comm_collective WHERE abs(bytes) < 1000000 GROUP BY op

SELECT l.x, count(*) FROM python.comm_collective c, LATERAL (SELECT c.bytes % 3 AS x) l GROUP BY l.x

SELECT _rank, op FROM python.comm_collective WHERE (_rank, op) IN (SELECT _rank, name FROM python.trace_event)

SELECT count(*) FROM python.comm_collective WHERE op NOT IN (SELECT name FROM python.trace_event)

SELECT count(*) FROM python.comm_collective WHERE bytes = ANY (SELECT span_id FROM python.trace_event WHERE _rank = 1)

SELECT count(*) FROM python.comm_collective WHERE bytes > ALL (SELECT span_id FROM python.trace_event WHERE _rank = 1 AND span_id IS NOT NULL)

WITH RECURSIVE s AS (SELECT _rank, 0 AS d FROM process.rank UNION ALL SELECT _rank, d + 1 FROM s WHERE d < 2) SELECT _rank, count(*) FROM s GROUP BY 1

SELECT op, max(w) FROM (SELECT op, sum(bytes) OVER (PARTITION BY _rank) AS w FROM python.comm_collective WHERE bytes < 100) GROUP BY op

SELECT a.op FROM python.comm_collective a JOIN (SELECT max(bytes) AS m FROM python.comm_collective) b ON a.bytes = b.m

SELECT op FROM python.comm_collective WHERE _rank = 1 AND _rank = 2

SELECT op FROM python.comm_collective WHERE _rank BETWEEN 3 AND 1

SELECT count(*) FROM python.comm_collective WHERE _rank = 1.0 OR _rank = 99

SELECT count(*) FROM python.comm_collective WHERE _host = 'H1'

SELECT count(*) FROM python.comm_collective WHERE _host COLLATE NOCASE = 'H1'

SELECT op, count(*) FROM python.comm_collective GROUP BY op ORDER BY count(*) DESC, op LIMIT $k OFFSET 1

SELECT max(global_step) - $k AS lo, (SELECT count(*) FROM python.comm_collective WHERE global_step > $k) AS n FROM python.comm_collective

SELECT sum(bytes) FILTER (WHERE _rank = 1) / nullif(sum(bytes) FILTER (WHERE _rank = 3), 0) FROM python.comm_collective

SELECT first_value(op) OVER (PARTITION BY _rank ORDER BY start_ns, seq, op, bytes) AS f, _rank FROM python.comm_collective

SELECT n.host, (SELECT count(*) FROM python.comm_collective c WHERE c._rank = n.rank) AS k FROM cluster.nodes n

SELECT n.host, sum(k) FROM cluster.nodes n LEFT JOIN (SELECT _rank, count(*) AS k FROM python.comm_collective GROUP BY _rank) c ON c._rank = n.rank GROUP BY n.host
