package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// observation is a way to observe the daemon while it works.
type observation struct {
	name    string
	metrics bool   // /metrics is read once a second
	sampled string // the share of requests that is traced; "": tracing is off
}

func observations() []observation {
	return []observation{
		{name: "unwatched"},
		{name: "metrics", metrics: true},
		{name: "traces, 1 %", sampled: "0.01"},
		{name: "traces, all", sampled: "1"},
	}
}

// observeResult is one round of one observation.
type observeResult struct {
	sustained
	exports int64 // requests that the collector received
}

// observe compares runs of `one` without observation, with metrics read each second, and with
// traces exported, in turn.
func observe(ctx context.Context, b *bench) error {
	ways := observations()
	rounds := make([][]observeResult, len(ways))
	for range b.Rounds {
		for i, w := range ways {
			r, err := w.round(ctx, b)
			if err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			b.note("observe, %s: %.0f deliveries/s, daemon %.0f µs each, %d exports", w.name, r.rate(), r.per(r.cpu.daemon), r.exports)
			rounds[i] = append(rounds[i], r)
		}
	}
	for i, w := range ways {
		addOf(b, "observe", w.name+": deliveries/s", "1/s", more, rounds[i], func(r observeResult) float64 { return r.rate() })
		cost := addOf(b, "observe", w.name+": daemon CPU a delivery", "µs", less, rounds[i], func(r observeResult) float64 { return r.per(r.cpu.daemon) })
		if base := b.figure("observe", ways[0].name+": daemon CPU a delivery"); cost != base {
			addOf(b, "observe", w.name+": CPU, of unwatched", "", less, rounds[i], func(r observeResult) float64 { return r.per(r.cpu.daemon) / base.Median })
		}
	}
	return nil
}

func (w observation) round(ctx context.Context, b *bench) (r observeResult, err error) {
	o := stackOptions{}
	if w.sampled != "" {
		url, end, err := collect(&r.exports)
		if err != nil {
			return r, err
		}
		defer end()
		o.environment = []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + url, "OTEL_TRACES_SAMPLER=traceidratio", "OTEL_TRACES_SAMPLER_ARG=" + w.sampled}
	}
	st, err := startStack(ctx, b.settings, o)
	if err != nil {
		return r, err
	}
	defer st.stop()
	if _, err := st.subscribe(ctx, 1, 1); err != nil {
		return r, err
	}
	if w.metrics {
		reading, stop := context.WithCancel(ctx)
		defer stop()
		go func() {
			for pause(reading, time.Second) == nil {
				_, _ = get(reading, st.daemons[0].admin+"/metrics") // the round fails if the daemon does
			}
		}()
	}
	spec := shape{companies: 1, fanOut: 1, batch: 1}.load(b.LoadFor)
	r.sustained, err = st.sustain(ctx, spec, 1)
	return r, err
}

// collect starts a collector that discards the spans and counts the requests.
func collect(exports *int64) (url string, end func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is closed by end
	if err != nil {
		return "", nil, err
	}
	var n atomic.Int64
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		n.Add(1)
		w.Header().Set("Content-Type", "application/x-protobuf")
	})}
	go func() { _ = server.Serve(l) }()
	return "http://" + l.Addr().String(), func() {
		_ = server.Close()
		*exports = n.Load()
	}, nil
}
