select c.op, r.status, count(*) from python.comm_collective c left join process.rank r on c._rank = r._rank and r.status <> 'x' where c.bytes > 1 group by c.op, r.status

select c.op, t.loss from python.comm_collective c right join python.torch_step_timing t on c._rank = t._rank and c.global_step = t.global_step where c.op = 'barrier'

select count(*) from python.comm_collective c full outer join python.torch_step_timing t on c._rank = t._rank and c.global_step = t.global_step where t.loss is null

select count(*) from python.comm_collective c left join python.torch_step_timing t on c._rank = t._rank and c.global_step = t.global_step and t.loss > 1 where t.loss is null and c.bytes > 0

select c._rank, count(*) from python.comm_collective c semi join python.torch_step_timing t using (_rank, global_step) where op is not null group by c._rank

select c._rank, count(*) from python.comm_collective c anti join python.torch_step_timing t on c._rank = t._rank and t.global_step = 1 group by c._rank

select * from (select _rank, count(*) n from python.comm_collective group by _rank) a full join (select _rank, count(*) m from python.torch_step_timing group by _rank) b using (_rank) order by _rank

select count(*) from python.comm_collective natural join python.torch_step_timing

select op, grouping(op), count(*) from python.comm_collective group by cube (op, _rank)

select op, _rank, sum(bytes) from python.comm_collective group by grouping sets ((op, _rank), (_rank), ())

select distinct on (op) op, bytes from python.comm_collective where bytes is not null order by op, bytes desc

select _rank from python.comm_collective intersect select _rank from python.torch_step_timing

select op from python.comm_collective except all select op from python.comm_collective where _rank < 3

select op from python.comm_collective where _rank = 0 union all select timing_source from python.comm_collective where _rank = 1 order by 1 limit 3

select op, bytes from python.comm_collective union by name select bytes, peer from python.comm_collective

(select op from python.comm_collective order by op limit 2) union all (select op from python.comm_collective order by op desc limit 1)

select _rank, op in (select op from python.torch_step_timing s, python.comm_collective c2 where s._rank = c2._rank) from python.comm_collective

select _rank from python.comm_collective where op not in (select op from python.comm_collective where bytes > 2)

select _rank from python.comm_collective where (op, bytes) in (select op, bytes from python.comm_collective where _rank = 1)

with recursive r(n) as (select 1 union all select n + 1 from r where n < 5) select n, (select count(*) from python.comm_collective where global_step = n) from r order by n

select x.i, count(c.op) from range(5) x(i) left join python.comm_collective c on c.global_step = x.i group by x.i order by x.i

select * exclude (_host, _addr) replace (bytes + 1 as bytes) from python.comm_collective

select columns('.*_rank') from python.comm_collective

select c.* from python.comm_collective c join process.rank r on r._rank = c._rank where r.rank = 2

select max(columns(['bytes', 'seq'])) from python.comm_collective

select count(*) from (select _rank, op from python.comm_collective group by all having count(*) > 1)

select op, count(*) from python.comm_collective group by op having max(bytes) > (select avg(bytes) from python.comm_collective) order by op

select op, sum(bytes) over (partition by op order by bytes, _rank, global_step, start_ns rows between 1 preceding and current row) from python.comm_collective where bytes is not null

select op, sum(bytes) over (partition by op) s, count(*) over () from python.comm_collective

select global_step, _rank, sum(bytes) s, rank() over (partition by global_step order by sum(bytes) desc nulls last) from python.comm_collective group by global_step, _rank

select global_step, avg(s) from (select global_step, _rank, sum(bytes) s from python.comm_collective group by global_step, _rank) group by global_step having count(*) >= 2

with w as (select global_step, _rank, sum(bytes) w from python.comm_collective where op is not null group by 1, 2), l as (select global_step, min(w) mn, max(w) mx from w group by 1) select w._rank, sum(case when w.w = l.mx then 1 else 0 end) * 1.0 / count(*) f from w join l using (global_step) group by w._rank order by f desc, w._rank

select s.span_id, e.time - s.time as d from python.trace_event s join python.trace_event e on s.span_id = e.span_id and s._rank = e._rank where s.record_type = 'a' and e.record_type = 'b"c'

select string_agg(op, ',' order by op, _rank) from python.comm_collective where op is not null

select list(bytes order by bytes)[1:3], array_agg(distinct op order by op) from python.comm_collective

select _rank, list_sort(list(bytes))[1] from python.comm_collective group by _rank

select percentile_cont(0.5) within group (order by bytes) from python.comm_collective

select arg_max(_rank, bytes * 1000 + _rank), min_by(op, bytes * 1000000 + global_step * 100 + _rank) from python.comm_collective where bytes is not null

select mode(world_size), mad(bytes), entropy(op), histogram(op) from python.comm_collective

select sum(distinct bytes), avg(distinct bytes), count(distinct _rank) from python.comm_collective

select json_extract_string(participate_ranks, '$[0]'), count(*) from python.comm_collective where json_valid(participate_ranks) group by 1

select cast(bytes as varchar) || coalesce(op, '?'), op like '%\_%' escape '\', op ilike 'ALL%', op similar to 'a.*', regexp_matches(op, 'a+') from python.comm_collective

select {'a': bytes, 'b': op} s, [bytes, 1] l, (bytes, op) from python.comm_collective

select _rank, max({'a': bytes, 'b': op}) from python.comm_collective group by _rank

select _rank, first(op order by start_ns, op) from python.comm_collective group by _rank

select op, interval 5 minute + interval '1 hour', to_seconds(bytes % 100) from python.comm_collective limit 3

select _rank, max(to_seconds(bytes % 100)) from python.comm_collective group by _rank

select _rank, sum(bytes)::hugeint * 1000000000000 from python.comm_collective group by _rank

select _rank, uuid_extract_version('0123e456-0000-4000-8000-000000000000'::uuid), '1'::bit, count(*) from python.comm_collective group by _rank

select _rank, null, count(*) from python.comm_collective group by _rank

select op as "weird ""name", count(*) as "select" from python.comm_collective group by "weird ""name" order by "select", 1

select "op", "_RANK" from python.comm_collective where "OP" = 'barrier'

select C.OP, C."Bytes" from PYTHON.Comm_Collective C where c.op is not null

select count(*) from global.python.comm_collective, global.cluster.nodes

select n.rank, n.host from cluster.nodes n where n.rank not in (select _rank from process.rank) order by 1

select max(rank) from cluster.nodes

select _rank, count(*) from python.comm_collective where _rank = (select max(rank) - 2 from cluster.nodes) group by _rank

select _rank, (select max(rank) from cluster.nodes) from process.rank

select 1

select 1 where false

select x from (values (1), (2)) v(x) where x in (select _rank from python.comm_collective)

select count(*) filter (where op = 'barrier') * 1.0 / nullif(count(*), 0) r from python.comm_collective having count(*) > 0

select op, count(*) from python.comm_collective where true group by op order by count(*) desc, op limit 2

select op, bytes from python.comm_collective where op = 'barrier' and (bytes > 1 or duration_ms is null) and not (bytes = 5) and bytes between -10 and 1000 order by all

select bytes d, d + 1 e from python.comm_collective where d > 1 order by e desc, _rank, op limit 4

select -bytes as bytes, op from python.comm_collective where bytes > 1 order by bytes, op

select bytes % 3 as m, count(*) from python.comm_collective group by m order by m

select global_step from python.comm_collective group by global_step order by max(bytes) desc nulls last, global_step limit 3

select _rank, op, count(*) from python.comm_collective group by _rank, op order by count(*) desc, _rank, op limit 3

select _rank from (select _rank, op, bytes from python.comm_collective order by bytes desc nulls last, _rank, op, global_step limit 7) group by _rank

select max(b) from (select bytes b from python.comm_collective order by bytes desc nulls last limit 3 offset 2)

select (select count(*) from python.comm_collective where op is null), (select max(loss) from python.torch_step_timing where isfinite(loss))

select _rank, count(*) from python.comm_collective where bytes > (select max(bytes) from python.torch_step_timing s join python.comm_collective c using (_rank) where c.op = 'nope') or op = 'barrier' group by _rank

select case when (select count(*) from python.comm_collective) > 5 then 'x' end

with a as (select * from python.comm_collective), b as (select * from a where _rank < 3) select op, count(*) from b group by op

with a as (select _rank, global_step from python.comm_collective), b as (select _rank, max(global_step) m from a group by _rank) select count(*) from a join b on a._rank = b._rank and a.global_step = b.m

with a as (select _rank, op from python.comm_collective where bytes > 0), b as (select op from a) select op, count(*) from b group by op

with a as (select op, _rank as r, bytes from python.comm_collective) select r, sum(bytes) from a group by r

with a as (select op, _rank as r, bytes from python.comm_collective) select r as x, sum(bytes), row_number() over (order by r) from a group by r

with a(x, y) as (select _rank, bytes from python.comm_collective) select x, sum(y) from a group by x

with a as materialized (select _rank, bytes from python.comm_collective) select _rank, sum(bytes) from a group by _rank

with t as (select 5 as x), u as (select x from t), t2 as (select * from u) select * from t2, (select count(*) c from python.comm_collective) q

with t as (select _rank, count(*) n from python.comm_collective group by _rank) select * from (with t as (select 7 as n) select n from t) q, t order by all

select sum(n) from (select count(*) n from python.comm_collective group by _rank union all select count(*) from python.torch_step_timing group by _rank)

select l.m, c._rank from python.comm_collective c, lateral (select max(t.loss) m from python.torch_step_timing t where t._rank = c._rank and isfinite(t.loss)) l

select c.start_ns, t.global_step from python.comm_collective c asof join python.torch_step_timing t on c._rank = t._rank and c.global_step >= t.global_step where t.phase is null

select unnest([bytes, 1]) from python.comm_collective where _rank = 1

select _rank, unnest([1, 2]) u, count(*) from python.comm_collective group by _rank

select _rank, bytes from python.comm_collective where list_contains([1, 2], _rank)

select op, avg(duration_ms) from python.comm_collective where duration_ms < 100 group by op order by op

select sum(duration_ms), avg(blocked_ms), stddev_pop(duration_ms) from python.comm_collective where isfinite(duration_ms) and isfinite(blocked_ms)

select _rank, max(duration_ms), min(duration_ms), median(duration_ms) from python.comm_collective group by _rank

select duration_ms, count(*) from python.comm_collective group by duration_ms

select distinct duration_ms from python.comm_collective

select max(duration_ms) is null, min(duration_ms) from python.comm_collective where _rank = 2

select sum(bytes), count(*), avg(bytes), median(bytes), max(op), quantile_disc(op, 0.5), bool_and(bytes > 0), any_value(op), stddev(bytes), corr(bytes, bytes) from python.comm_collective where _rank = 2

select _rank, count(*) from python.comm_collective where _rank = 77 group by _rank

select _rank, count(*) from python.comm_collective where _rank in (1, 3) and _rank > 1 group by _rank

select op, bytes from python.comm_collective where _rank = $k and op = coalesce($missing, op)

select count(*), $k::varchar, $k + 0.5 from python.comm_collective limit $k

select make_timestamp(global_step * 1000000)::timestamp t, count(*) from python.comm_collective group by t order by t

select date_trunc('minute', make_timestamp(global_step * 60000000)) m, max(make_timestamp(global_step)::date), median(make_timestamp(global_step)) from python.comm_collective group by m order by m

select max(now()) = now(), max(current_date) from python.comm_collective

select quantile_cont(bytes, $q), quantile_cont(bytes, 0.25 + 0.25) from python.comm_collective

select approx_quantile(bytes, 0.5), approx_count_distinct(bytes) from python.comm_collective

select _rank, sum(sum(bytes)) over (order by _rank) from python.comm_collective group by _rank order by _rank

select op, count(*) c from python.comm_collective group by op qualify row_number() over (order by count(*) desc, op) <= 2

select first_value(_rank) over (order by _rank, global_step, start_ns, bytes), _rank from python.comm_collective

select count(*) over w, _rank from python.comm_collective window w as (partition by _rank)

select greatest(bytes, 1), least(bytes, 1), coalesce(bytes, 0), nullif(bytes, 1), if(bytes > 1, 'a', 'b') from python.comm_collective

select bytes / 3, bytes // 3, bytes % 3, bytes ** 2, -bytes, bytes & 3, bytes | 4, bytes << 1 from python.comm_collective where bytes between 0 and 100

select max(bytes / 3), sum(bytes // 3), avg(bytes % 3), max(bytes ** 2) from python.comm_collective where bytes between 0 and 100

select typeof(sum(bytes)), typeof(avg(bytes)), typeof(max(op)) from python.comm_collective

select sum(bytes) // 7, median(bytes) % 2, sum(bytes) & 3 from python.comm_collective

select median(s), max(s) // 2 from (select _rank, sum(bytes) s from python.comm_collective group by _rank)

select host, count(*) from (select n.host, r._rank from cluster.nodes n join process.rank r on n.rank = r._rank) group by host

select op from python.comm_collective order by bytes desc nulls last, op, _rank limit 3

select op from python.comm_collective order by lower(op) nulls first, _rank, bytes, duration_ms limit 3

select op o from python.comm_collective order by o nulls first limit 3

select lower(op) as op from python.comm_collective order by op nulls first limit 3

select * from python.comm_collective order by bytes, _rank, start_ns, duration_ms, op limit 2

select bytes from python.comm_collective where bytes > 0 order by 1 desc limit 3 offset 100

select bytes from python.comm_collective order by bytes limit all

select bytes from python.comm_collective order by bytes limit 50%

select op, (select max(c2.bytes) from python.comm_collective c2 where c2.op = c1.op) m from (select distinct op from python.comm_collective) c1 order by op

select exists(select 1 from python.comm_collective where op = 'nope'), not exists (select 1 from python.torch_step_timing)

select _rank, exists(select 1 from cluster.nodes n where n.rank = r._rank) from process.rank r order by 1

select coalesce(sum(bytes), 0) from python.comm_collective where op is null and _rank = 99

select rank, count(*) from python.comm_collective group by rank order by rank

select _role, _generation, _local_rank, _node_rank, _addr, count(*) from python.comm_collective group by all

select bytes % bytes as m from python.comm_collective order by all limit 0 offset 1

select nullif(bytes, 1) as m, op || 'x' from python.comm_collective order by 1 desc nulls last, 2 limit 4

WITH bounds AS (SELECT max(global_step) AS top FROM global.python.comm_collective) SELECT _host, _rank, max(global_step) AS last_step, (SELECT top FROM bounds) - max(global_step) AS behind FROM global.python.comm_collective, bounds WHERE global_step >= (SELECT top - 3 FROM bounds) GROUP BY _host, _rank, bounds.top HAVING max(global_step) <= (SELECT top FROM bounds) ORDER BY behind DESC, _rank

SELECT rank FROM cluster.nodes WHERE rank NOT IN (SELECT _rank FROM python.comm_collective WHERE bytes > 1)

SELECT _rank, rank() OVER w AS r, count(*) OVER w AS n FROM python.comm_collective WINDOW w AS (PARTITION BY _rank ORDER BY global_step)

SELECT op, percentile_cont(0.9) WITHIN GROUP (ORDER BY bytes) AS p, percentile_disc(0.5) WITHIN GROUP (ORDER BY op DESC) AS d, percentile_disc(0.5) WITHIN GROUP (ORDER BY op) FILTER (WHERE bytes > 1) AS f FROM python.comm_collective GROUP BY op

SELECT substring(op FROM 2 FOR 3) AS s, trim(BOTH 'a' FROM op) AS t, position('r' IN op) AS p FROM python.comm_collective

SELECT op, role, count(*), grouping(op, role) AS g FROM python.comm_collective GROUP BY CUBE (op, role) HAVING count(*) > 1

SELECT op, count(DISTINCT bytes) FILTER (WHERE _rank > 1) AS n, sum(DISTINCT bytes % 3) AS s, string_agg(DISTINCT pg_name, '|' ORDER BY pg_name) AS t, count(*) FROM python.comm_collective GROUP BY op

SELECT a._rank, count(*), max(b.time) FROM python.comm_collective a JOIN python.trace_event b USING (_rank) WHERE a.global_step = b.global_step GROUP BY a._rank

SELECT a.op, b.phase, count(*) FROM python.comm_collective a LEFT JOIN python.trace_event b ON a._rank = b._rank AND a.global_step = b.global_step GROUP BY a.op, b.phase

SELECT _rank, max(bytes) FROM python.comm_collective WHERE (_host = 'h1' OR _host = 'h0') AND _rank BETWEEN 1 AND 4 GROUP BY _rank
