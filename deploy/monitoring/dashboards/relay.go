package main

// relayBoard shows the relays. Each relay exports every source, so a source's gauge is that of the relay that reads
// it: the maximum over the relays.
var relayBoard = board{"relay", "Spendhook: relay", []row{
	{"Health", []panel{
		number("Relays scraped", "short", `sum(up{job="spendhook-relay"})`),
		number("Sources that are not open", "short", `count(max by (source) (spendhook_relay_up) == 0) or vector(0)`),
		number("Sources that no relay reads", "short", `count(max by (source) (spendhook_relay_active) == 0) or vector(0)`),
		number("Age of the oldest record without an outcome", "s", `max(time() - (spendhook_relay_oldest_record_timestamp_seconds > 0)) or vector(0)`),
		number("Records left in the sources", "short", `sum(max by (source, partition) (spendhook_relay_lag_records))`),
		number("Dead records, 24 h", "short", `sum(increase(spendhook_relay_records_total{result="dead"}[24h]))`),
	}},
	{"Records", []panel{
		graph("Records accepted, new or known", "cps", query{`sum by (source, result) (rate(spendhook_relay_records_total{result=~"accepted|duplicate"}[$__rate_interval]))`, "{{source}}, {{result}}"}),
		graph("Dead records", "short", query{`sum by (source) (increase(spendhook_relay_records_total{result="dead"}[$__rate_interval]))`, "{{source}}"}),
		graph("Requests that the daemon refused or did not answer", "cps", query{`sum by (source) (rate(spendhook_relay_refusals_total[$__rate_interval]))`, "{{source}}"}),
	}},
	{"Sources", []panel{
		graph("Age of the oldest record without an outcome", "s", query{`max by (source) (time() - (spendhook_relay_oldest_record_timestamp_seconds > 0))`, "{{source}}"}),
		graph("Records left in a source", "short", query{`sum by (source) (max by (source, partition) (spendhook_relay_lag_records))`, "{{source}}"}),
		graph("Records left in a partition", "short", query{`topk(10, max by (source, partition) (spendhook_relay_lag_records))`, "{{source}} {{partition}}"}),
		graph("Sources that are open, 0 after a fault", "short", query{`spendhook_relay_up`, "{{source}}, {{instance}}"}),
		graph("Relays that read a source", "short", query{`sum by (source) (spendhook_relay_active)`, "{{source}}"}),
	}},
	{"Relays", []panel{
		graph("CPU", "short", query{`rate(process_cpu_seconds_total{job="spendhook-relay"}[$__rate_interval])`, "{{instance}}"}),
		graph("Memory", "bytes", query{`process_resident_memory_bytes{job="spendhook-relay"}`, "{{instance}}"}),
	}},
}}
