select * from global.python.comm_collective

select count(*) from python.comm_collective

select op, count(*), sum(bytes), max(duration_ms) from global.python.comm_collective where op = 'all_reduce' and bytes > 1 group by op

select _rank, median(duration_ms) from global.python.comm_collective group by _rank order by _rank

select _rank, sum(bytes) as b from python.comm_collective where global_step > (select max(global_step) - $step_window from global.python.torch_step_timing) group by _rank order by _rank

with bounds as (select max(global_step) - $step_window as lo from global.python.torch_step_timing) select c._rank, c.global_step, sum(c.bytes) from global.python.comm_collective c cross join bounds b where c.global_step > b.lo group by c._rank, c.global_step

select n.host, n.rank, r.rank as rr, r.age_s from cluster.nodes n left join global.process.rank r on n.rank = r._rank order by n.rank

with s as (select _rank, global_step, sum(duration_ms) d from global.python.comm_collective where op is not null group by _rank, global_step), m as (select _rank, median(d) md from s group by _rank) select _rank, md, md / (select median(md) from m) as ratio from m order by _rank

select global_step, max(duration_ms) / nullif(min(duration_ms), 0) as ratio from global.python.comm_collective group by global_step order by global_step

select op, bytes from global.python.comm_collective where bytes is not null order by bytes desc, op, _rank, global_step limit 5 offset 1

select distinct op from python.comm_collective

select count(distinct op) from python.comm_collective

select op, row_number() over (partition by _rank order by start_ns, bytes, duration_ms) from python.comm_collective

select a._rank, b._rank, a.bytes from python.comm_collective a join python.comm_collective b on a.global_step = b.global_step and a._rank < b._rank and a.op = 'barrier' where b.op = 'barrier'

select global.python.comm_collective.op from global.python.comm_collective where global.python.comm_collective._rank = 3

select max(bytes) - $k, $k from python.comm_collective where _rank in (1, 2)

select t from python.torch_step_timing t limit 3

select comm_collective from python.comm_collective limit 2

select rank from process.rank

select _rank, sum(case when op = 'barrier' then 1 else 0 end) * 1.0 / count(*) f from python.comm_collective group by all order by all

select op, count(*) filter (where bytes > 0) c from python.comm_collective group by op having count(*) > 2 order by c desc, op

select (select count(*) from python.torch_step_timing), max(bytes) from python.comm_collective

select _rank, op from python.comm_collective c where exists (select 1 from python.torch_step_timing t where t._rank = c._rank and t.global_step = c.global_step and t.loss > 1)

select _rank from python.comm_collective union select _rank from python.torch_step_timing

select now() > timestamptz '2020-01-01', current_date = today(), age(timestamp '2020-01-01') > interval 1 day from python.comm_collective limit 1

with s as (select _rank, global_step, sum(duration_ms) d from global.python.comm_collective where op is not null group by _rank, global_step) select _rank, median(d) from s group by _rank order by 2, 1

select _rank, op, bytes from python.comm_collective order by bytes desc nulls last, _rank, op, global_step, duration_ms limit 4

select _rank, count(*) c from python.comm_collective group by _rank order by c desc, _rank limit 3 offset 1

select distinct _rank, op from python.comm_collective order by op, _rank

select max(c) from (select _rank, count(*) c from python.comm_collective group by _rank) x

select _rank + 1 as r, count(*) from python.comm_collective group by _rank

select _rank, count(*) from python.comm_collective group by rollup (_rank)

select _host, count(*) from python.comm_collective group by _host

select _rank as x, max(bytes) from python.comm_collective c group by c._rank, op having max(bytes) > 1 order by x, 2

select x._rank, x.n from (select _rank, count(*) n from python.comm_collective group by 1) x join cluster.nodes k on k.rank = x._rank where k.host = 'h0'

select * from (select _rank, op, lag(bytes) over (partition by _rank order by start_ns, global_step, bytes, op, duration_ms) l from python.comm_collective) q where l is not null

select op from python.comm_collective limit 0

select _rank, sum(bytes) from python.comm_collective where _rank in (1,2) group by _rank

with a as (select * from python.comm_collective where op is not null), b as (select _rank, global_step, count(*) n from a group by all), c as (select global_step, max(n) m from b group by 1) select b._rank, b.n, c.m from b join c using (global_step) order by all

select _rank from python.comm_collective qualify row_number() over (partition by _rank order by bytes) = 1

select (select count(*) from python.comm_collective c2 where c2._rank = c1._rank) n, _rank from python.comm_collective c1 where op = 'barrier'

select _rank, (select max(x.n) from (select _rank r, count(*) n from python.torch_step_timing group by 1) x where x.r = c._rank) from python.comm_collective c where op = 'barrier'

with bounds as (select max(global_step) - $step_window as lo, max(global_step) hi from global.python.torch_step_timing) select c._rank, median(c.duration_ms), b.hi from global.python.comm_collective c, bounds b where c.global_step > b.lo and global_step <= hi group by c._rank, b.hi order by c._rank

select _rank, count(*) from python.comm_collective where start_ns >= (select min(start_ns) from python.comm_collective) and duration_ms < (select avg(duration_ms) from python.comm_collective where op = 'barrier' and isfinite(duration_ms)) group by _rank

select _rank, count(*) from python.comm_collective where global_step > (select max(global_step) - 3 from python.torch_step_timing where global_step < (select max(global_step) from python.comm_collective)) group by _rank

select _rank, count(*) from python.comm_collective where op = (select min(op) from python.comm_collective where op > 'b') group by _rank

select _rank, count(*) from python.comm_collective where to_timestamp(bytes) >= (select max(to_timestamp(bytes)) from python.comm_collective where bytes < 10) group by _rank

select _rank, count(*) from python.comm_collective where global_step > (select max(global_step) from python.comm_collective where op = 'nope') group by _rank

select _rank, count(*) from python.comm_collective where global_step = (select global_step from python.torch_step_timing where _rank = 0 and local_step = 1 limit 1) group by _rank

select global_step from python.comm_collective where bytes > all (select max(bytes) from python.torch_step_timing t, python.comm_collective c where t._rank = c._rank)

with bounds as (select max(global_step) - $step_window as lo from global.python.torch_step_timing) select *, b.lo from global.python.comm_collective c, bounds b where c.global_step > b.lo

select avg(duration_ms), stddev(duration_ms), count(*), sum(bytes), min(op), max(op), median(bytes) from python.comm_collective where isfinite(duration_ms)

select op, avg(bytes) a, quantile_cont(bytes, 0.9), quantile_disc(op, 0.5), median(duration_ms) from python.comm_collective group by op order by a desc, op

select op, sum(bytes) / count(*) as r, count(*) filter (where bytes > 1) n from python.comm_collective group by 1 having count(bytes) > 1 order by r

select global_step % 2 as par, op as o, max(start_ns) from python.comm_collective group by par, o

select upper(op), count(*) from python.comm_collective group by op

select upper(op) u, count(*) from python.comm_collective group by u order by upper(op)

select op || 'x', count(*) from python.comm_collective group by all

select count(*), sum(bytes), max(op) from python.comm_collective where op = 'nope'

select op, count(*) from python.comm_collective where op = 'nope' group by op

select global_step, max(s) - min(s) spread from (select _rank, global_step, sum(bytes) s from python.comm_collective group by all) q group by global_step order by 1

select op, count(*) c, sum(count(*)) over () total, rank() over (order by count(*) desc) r from python.comm_collective group by op order by r, op

select max(op) as op, count(*) from python.comm_collective group by global_step order by op

select corr(bytes, global_step), covar_pop(bytes, start_ns), regr_slope(bytes, global_step), var_pop(bytes) from python.comm_collective

select approx_count_distinct(op), count(distinct op), any_value(world_size) from python.comm_collective

select bool_and(bytes > 0), bit_or(bytes), bit_xor(global_step), sum(bytes > 0) from python.comm_collective

select sum(bytes::decimal(20,3)), avg(bytes::decimal(20,3)), max(bytes::decimal(20,3)), sum(bytes::int) from python.comm_collective where bytes < 100

select count(*) + 1, count(*) * 2.0 / (select count(*) from python.torch_step_timing) from python.comm_collective

select distinct op, bytes > 1 from python.comm_collective where bytes is not null order by all limit 4

select op, list(distinct bytes order by bytes) from python.comm_collective group by op

select quantile_cont(duration_ms, [0.1, 0.5]) from python.comm_collective

select quantile_cont(duration_ms, 0.5) from python.comm_collective where duration_ms is not null group by op

select 1 from python.comm_collective group by op

select case when count(*) > 3 then 'many' else 'few' end from python.comm_collective group by op, global_step

select sum(duration_ms) from python.comm_collective
