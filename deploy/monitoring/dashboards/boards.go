package main

// board is a dashboard.
type board struct {
	file, title string
	rows        []row
}

// row is a group of panels.
type row struct {
	title  string
	panels []panel
}

// panel shows queries over time, or as one number.
type panel struct {
	title, unit string
	number      bool
	queries     []query
}

// query is a query of Prometheus with the legend of its series.
type query struct{ expr, legend string }

func graph(title, unit string, queries ...query) panel {
	return panel{title: title, unit: unit, queries: queries}
}

func number(title, unit, expr string) panel {
	return panel{title: title, unit: unit, number: true, queries: []query{{expr, ""}}}
}

// quantiles returns queries for the median and the 99th percentile of a histogram.
func quantiles(histogram, selector, by string) []query {
	var out []query
	for _, q := range []string{"0.5", "0.99"} {
		group, legend := "le", "p"+q[2:]
		if by != "" {
			group, legend = "le, "+by, legend+" {{"+by+"}}"
		}
		out = append(out, query{"histogram_quantile(" + q + ", sum by (" + group + ") (rate(" + histogram + "_bucket" + selector + "[$__rate_interval])))", legend})
	}
	return out
}

const spendRoutes = `{route=~"/api/v[123]/(cards|reimbursements|locations|billing-statements).*"}`

var boards = []board{
	{"overview", "Spendhook: overview", []row{
		{"Health", []panel{
			number("Replicas scraped", "short", `sum(up{job="spendhook"})`),
			number("Redis stores data safely", "bool", `min(spendhook_redis_safe)`),
			number("Partitions with an owner", "short", `sum(spendhook_partitions_owned)`),
			number("Oldest overdue work", "s", `max(spendhook_oldest_pending_seconds)`),
			number("Dead letters", "short", `sum(spendhook_dead_letters)`),
			number("Quarantined records", "short", `sum(spendhook_quarantined)`),
		}},
		{"Objectives", []panel{
			graph("Error budget burn, 1 h", "short", query{`spendhook:slo_burn:ratio_1h`, "{{slo}}"}),
			graph("Error budget burn, 3 d", "short", query{`spendhook:slo_burn:ratio_3d`, "{{slo}}"}),
			graph("Alerts", "short", query{`sum by (alertname, alertstate) (ALERTS{alertname=~"Spendhook.+"})`, "{{alertname}} {{alertstate}}"}),
		}},
		{"Events and deliveries", []panel{
			graph("Events by result", "cps", query{`sum by (result) (rate(spendhook_events_total[$__rate_interval]))`, "{{result}}"}),
			graph("Attempts by outcome", "cps", query{`sum by (outcome) (rate(spendhook_delivery_attempts_total[$__rate_interval]))`, "{{outcome}}"}),
			graph("Deliveries ended", "cps", query{`sum by (status) (rate(spendhook_deliveries_total[$__rate_interval]))`, "{{status}}"}),
			graph("Acceptance to success, without deliveries that were held", "s", quantiles("spendhook_delivery_latency_seconds", `{held="none"}`, "")...),
			graph("Pending events", "short", query{`sum(spendhook_events_pending)`, "pending"}),
			graph("Largest backlogs", "short", query{`topk(10, spendhook_company_backlog)`, "{{company}}"}),
		}},
		{"Canary", []panel{
			number("Since its last arrival", "s", `time() - max(spendhook_canary_last_arrival_timestamp_seconds > 0)`),
			graph("Emission to arrival", "s", quantiles("spendhook_canary_latency_seconds", "", "")...),
			graph("Events that were not emitted", "short", query{`sum by (instance) (increase(spendhook_canary_failures_total[$__rate_interval]))`, "{{instance}}"}),
		}},
		{"Held by a rate limit or a pause", []panel{
			graph("Deliveries that were held", "cps", query{`spendhook:held_deliveries:rate5m`, "{{held}}"}),
			graph("Time held, p99", "s", query{`spendhook:held_wait_seconds:p99_rate5m`, "{{reason}}"}),
		}},
		{"Replicas", []panel{
			graph("CPU", "short", query{`rate(process_cpu_seconds_total{job="spendhook"}[$__rate_interval])`, "{{instance}}"}),
			graph("Memory", "bytes", query{`process_resident_memory_bytes{job="spendhook"}`, "{{instance}}"}),
			graph("Partitions taken over", "short", query{`increase(spendhook_partitions_taken_over_total[$__rate_interval])`, "{{instance}}"}),
			graph("Replicas by version", "short", query{`count by (version) (spendhook_build_info)`, "{{version}}"}),
			graph("Clocks ahead of the replica's", "s", query{`spendhook_clock_ahead_seconds`, "{{server}}, {{instance}}"}),
			graph("Companies refused at their share", "short", query{`spendhook_companies_refused`, "{{instance}}"}),
		}},
	}},
	{"endpoints", "Spendhook: endpoints", []row{
		{"Receivers", []panel{
			graph("Endpoints by breaker", "short", query{`sum by (state) (spendhook_endpoints)`, "{{state}}"}),
			graph("Attempts by outcome", "cps", query{`sum by (outcome) (rate(spendhook_delivery_attempts_total[$__rate_interval]))`, "{{outcome}}"}),
			graph("Duration of an attempt", "s", quantiles("spendhook_delivery_duration_seconds", "", "")...),
			graph("Wait before an attempt", "s", quantiles("spendhook_delivery_wait_seconds", "", "reason")...),
			graph("Acceptance to success, by the cause of a delay", "s", quantiles("spendhook_delivery_latency_seconds", "", "held")...),
			graph("Dead letters", "short", query{`sum(spendhook_dead_letters)`, "kept"}, query{`sum(increase(spendhook_deliveries_total{status="DEAD"}[1h]))`, "in the last hour"}),
		}},
		{"Replicas", []panel{
			graph("Deliveries in memory", "short", query{`spendhook_deliveries_held`, "{{instance}}"}),
			graph("Attempts in flight", "short", query{`spendhook_attempts_in_flight`, "{{instance}}"}),
			graph("Companies skipped at their share of memory", "cps", query{`rate(spendhook_shares_refused_total[$__rate_interval])`, "{{instance}}"}),
			graph("Appended to retry sets", "cps", query{`rate(spendhook_deliveries_queued_total[$__rate_interval])`, "{{instance}}"}),
			graph("Deliveries by whether they name the event before", "cps", query{`sum by (previous) (rate(spendhook_deliveries_matched_total[$__rate_interval]))`, "{{previous}}"}),
			graph("Steps of jobs over many deliveries", "cps", query{`sum by (result) (rate(spendhook_job_steps_total[$__rate_interval]))`, "{{result}}"}),
			graph("Failed evaluations of filters", "cps", query{`sum(rate(spendhook_filter_errors_total[$__rate_interval]))`, "failed"}),
		}},
		{"Signatures, tokens and certificates for receivers", []panel{
			graph("Requests for access tokens of receivers", "cps", query{`sum by (result) (rate(spendhook_receiver_tokens_total[$__rate_interval]))`, "{{result}}"}),
			graph("Messages to contacts", "short", query{`sum by (channel, result) (increase(spendhook_contact_messages_total[$__rate_interval]))`, "{{channel}} {{result}}"}),
			graph("Challenges of callback URLs", "short", query{`sum by (result) (increase(spendhook_challenges_total[$__rate_interval]))`, "{{result}}"}),
			number("Subscribers that are not verified", "short", `sum(spendhook_subscribers_unverified)`),
			graph("Changes of signing keys", "short", query{`sum by (change) (increase(spendhook_signing_key_changes_total[$__rate_interval]))`, "{{change}}"}),
			graph("Reads of subscribers with signing keys that cannot be decrypted", "cps", query{`sum(rate(spendhook_signing_keys_locked_total[$__rate_interval]))`, "reads"}),
			number("Published egress addresses", "short", `max(spendhook_egress_addresses{state="valid"})`),
			number("Egress certificates that expire soon", "short", `sum(spendhook_egress_certificates_ending)`),
		}},
	}},
	{"redis", "Spendhook: Redis and queues", []row{
		{"Redis", []panel{
			graph("Memory of the fullest server", "bytes",
				query{`max(spendhook_redis_memory_bytes)`, "used"}, query{`max(spendhook_redis_high_water_bytes)`, "high-water mark"}, query{`max(spendhook_redis_memory_limit_bytes)`, "limit"}),
			graph("Redis reachable, and safe", "short", query{`spendhook_redis_up`, "up {{instance}}"}, query{`spendhook_redis_safe`, "safe {{instance}}"}),
			graph("Events refused for memory", "cps", query{`sum by (result) (rate(spendhook_events_total{result=~"storage_full|memory_full"}[$__rate_interval]))`, "{{result}}"}),
		}},
		{"Queues", []panel{
			graph("Oldest overdue work", "s", query{`max(spendhook_oldest_pending_seconds)`, "oldest"}),
			graph("Recorder lag", "s", query{`spendhook_recorder_lag_seconds`, "{{instance}}"}),
			graph("Scheduler lag", "s", query{`spendhook_scheduler_lag_seconds`, "{{instance}}"}),
			graph("Partitions owned", "short", query{`spendhook_partitions_owned`, "{{instance}}"}),
			graph("Live replicas, as counted by each", "short", query{`spendhook_replicas`, "{{instance}}"}),
			graph("Turns", "cps", query{`rate(spendhook_turns_total[$__rate_interval])`, "{{instance}}"}),
			graph("Wake-ups", "cps", query{`sum(rate(spendhook_wakeups_enqueued_total[$__rate_interval]))`, "enqueued"}, query{`sum(rate(spendhook_wakeups_served_total[$__rate_interval]))`, "served"}, query{`sum(rate(spendhook_wakeups_failed_total[$__rate_interval]))`, "failed"}),
			graph("Lost partitions", "short", query{`increase(spendhook_partitions_lost_total[$__rate_interval])`, "lost by {{instance}}"}),
			graph("Events compacted, and written to the history", "cps", query{`sum(rate(spendhook_events_compacted_total[$__rate_interval]))`, "compacted"}, query{`sum(rate(spendhook_history_events_total[$__rate_interval]))`, "written"}),
			graph("Wait of the oldest event for the history", "s", query{`spendhook_history_lag_seconds`, "{{instance}}"}),
		}},
		{"Quarantine and audit log", []panel{
			number("Quarantined records", "short", `sum(spendhook_quarantined)`),
			number("Audit entries", "short", `sum(spendhook_audit_entries)`),
			graph("Audit entries by result", "cps", query{`sum by (result) (rate(spendhook_audit_entries_total[$__rate_interval]))`, "{{result}}"}),
		}},
	}},
	{"spend-api", "Spendhook: spend API", []row{
		{"Requests", []panel{
			number("Database reachable", "bool", `min(spendhook_database_up)`),
			graph("Requests by status", "reqps", query{`sum by (status) (rate(spendhook_http_request_duration_seconds_count` + spendRoutes + `[$__rate_interval]))`, "{{status}}"}),
			graph("Requests by route", "reqps", query{`sum by (method, route) (rate(spendhook_http_request_duration_seconds_count` + spendRoutes + `[$__rate_interval]))`, "{{method}} {{route}}"}),
			graph("Time to answer", "s", quantiles("spendhook_http_request_duration_seconds", spendRoutes, "")...),
			graph("Requests refused by a rate limit", "cps", query{`sum by (limit) (rate(spendhook_http_throttled_total[$__rate_interval]))`, "{{limit}}"}),
		}},
		{"Tokens and certificates of the API", []panel{
			graph("Token requests", "cps", query{`sum by (result) (rate(spendhook_token_requests_total[$__rate_interval]))`, "{{result}}"}),
			number("Age of the key that signs access tokens", "s", `max(spendhook_token_key_age_seconds)`),
			graph("Logins to the console", "short", query{`sum by (result) (increase(spendhook_console_logins_total[$__rate_interval]))`, "{{result}}"}),
			graph("Time until certificates expire", "s", query{`min((spendhook_tls_certificate_expiry_timestamp_seconds > 0) - time())`, "server"}, query{`min((spendhook_tls_client_ca_expiry_timestamp_seconds > 0) - time())`, "CA of clients"}),
			graph("TLS files that were invalid", "short", query{`sum by (files) (increase(spendhook_tls_reload_failures_total[$__rate_interval]))`, "{{files}}"}),
		}},
		{"Bulk creations", []panel{
			graph("Items without an outcome", "short", query{`sum(spendhook_card_items_unfinished)`, "items"}),
			graph("Items by outcome", "cps", query{`sum by (outcome) (rate(spendhook_card_items_total[$__rate_interval]))`, "{{outcome}}"}),
			graph("Duration of an item", "s", quantiles("spendhook_card_item_seconds", "", "")...),
			graph("Duration of a bulk creation", "s", quantiles("spendhook_card_job_seconds", "", "")...),
			graph("Failed attempts at an item", "cps", query{`sum(rate(spendhook_card_item_failures_total[$__rate_interval]))`, "failed"}),
		}},
		{"Clients", []panel{
			graph("Open connections", "short", query{`sum by (listener) (spendhook_connections_open)`, "{{listener}}"}),
			graph("Memory of request bodies", "bytes", query{`spendhook_bodies_bytes`, "{{instance}}"}),
			graph("Connections and bodies refused", "cps", query{`sum by (reason) (rate(spendhook_connections_refused_total[$__rate_interval]))`, "{{reason}}"}, query{`sum(rate(spendhook_bodies_refused_total[$__rate_interval]))`, "bodies"}),
		}},
	}},
	relayBoard,
}
