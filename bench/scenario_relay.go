package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"spendhook/relay/outbox"
)

const (
	relayRecords    = 100_000
	relayKeys       = 1000
	relayPartitions = 4
)

// relayed is the result of a run in which a relay carried the events.
type relayed struct {
	sustained

	relay time.Duration // CPU time of the relay
}

// relays measures how fast a relay carries records that are there already, against arrays of 100 events by HTTP.
func relays(ctx context.Context, b *bench) error {
	st, err := startStack(ctx, b.settings, stackOptions{})
	if err != nil {
		return err
	}
	defer st.stop()
	if _, err := st.subscribe(ctx, 1, 1); err != nil {
		return err
	}
	n := int64(b.scaled(relayRecords, 1000))
	var arrays []sustained
	of := map[string][]relayed{}
	for range b.Rounds {
		r, err := st.sustain(ctx, loadSpec{Companies: 1, Batch: 100, Count: n, For: drainTime}, 1)
		if err != nil {
			return err
		}
		arrays = append(arrays, r)
		b.note("relay: %.0f deliveries/s of arrays", r.rate())
		for _, source := range []struct {
			name string
			fill func(ctx context.Context, run, n int64) (settings string, remove func(), err error)
		}{{"kafka", fillTopic}, {"outbox", fillOutbox}} {
			got, err := st.relay(ctx, n, source.fill)
			if err != nil {
				return fmt.Errorf("%s: %w", source.name, err)
			}
			of[source.name] = append(of[source.name], got)
			b.note("relay: %.0f deliveries/s of %s, relay %.0f µs, daemon %.0f µs", got.rate(), source.name, got.per(got.relay), got.per(got.cpu.daemon))
		}
	}
	b.add("relay", "arrays by HTTP", "1/s", more, each(arrays, sustained.rate)...)
	for name, goal := range map[string]float64{"kafka": 0.8, "outbox": 0} {
		list := of[name]
		var ratios []float64
		for i, r := range list {
			ratios = append(ratios, r.rate()/arrays[i].rate())
		}
		ratio := b.add("relay", name+" of arrays by HTTP", "", more, ratios...)
		rate := b.add("relay", name, "1/s", more, each(list, func(r relayed) float64 { return r.rate() })...)
		if goal > 0 {
			ratio.goal(goal)
		} else {
			rate.goal(5000)
		}
		b.add("relay", name+": relay CPU a record", "µs", less, each(list, func(r relayed) float64 { return r.per(r.relay) })...)
	}
	return nil
}

// relay fills a source, starts a relay of it, and waits until all its events are delivered and recorded.
func (s *stack) relay(ctx context.Context, n int64, fill func(context.Context, int64, int64) (string, func(), error)) (r relayed, err error) {
	run, err := s.newRun(ctx)
	if err != nil {
		return r, err
	}
	source, remove, err := fill(ctx, run, n)
	if err != nil {
		return r, err
	}
	defer remove()
	recorded, err := s.delivered(ctx)
	if err != nil {
		return r, err
	}
	token, err := s.daemons[0].mintFor(ctx, 0)
	if err != nil {
		return r, err
	}
	settings := fmt.Sprintf("url: %s\ntoken_file: %s\nadmin_listen: 127.0.0.1:0\nsources:\n  bench:\n    companies: [%s]\n%s",
		s.daemons[0].base, filepath.Join(s.dir, "relay-token"), company(0), source)
	for name, text := range map[string]string{"relay-token": token, "relay.yml": settings} {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
			return r, err
		}
	}
	before, err := s.usage()
	if err != nil {
		return r, err
	}
	start := time.Now()
	cmd := exec.CommandContext(ctx, s.settings.Spendhook, "relay", "--config", filepath.Join(s.dir, "relay.yml")) //nolint:gosec // our own arguments
	process, err := startCommand(s.dir, "relay", cmd)
	if err != nil {
		return r, err
	}
	defer process.Kill()
	r.expected = n
	if err := s.awaitDistinct(ctx, n); err != nil {
		return r, fmt.Errorf("%w; the relay's log: %s", err, process.logTail())
	}
	if err := s.awaitRecorded(ctx, recorded+n); err != nil {
		return r, err
	}
	r.took = time.Since(start)
	if r.relay, _, err = cpuTime(process.Pid()); err != nil {
		return r, err
	}
	return r, s.finish(ctx, &r.sustained, before)
}

// fillTopic makes a topic of a Kafka in this process.
func fillTopic(ctx context.Context, run, n int64) (settings string, remove func(), err error) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(relayPartitions, "bench", "bench-dead"))
	if err != nil {
		return "", nil, err
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.DefaultProduceTopic("bench"))
	if err != nil {
		cluster.Close()
		return "", nil, err
	}
	defer client.Close()
	promise := kgo.AbortingFirstErrPromise(client)
	for i := range n {
		value := appendEvent(nil, eventID{run: run, n: i, sent: time.Now()}, company(0), eventType, time.Now())
		client.Produce(ctx, &kgo.Record{Key: fmt.Appendf(nil, "k%d", i%relayKeys), Value: value}, promise.Promise())
	}
	err = client.Flush(ctx)
	if err == nil {
		err = promise.Err()
	}
	if err != nil {
		cluster.Close()
		return "", nil, err
	}
	return fmt.Sprintf("    kafka: {brokers: ['%s'], topics: [bench], dead_letter_topic: bench-dead}\n", strings.Join(cluster.ListenAddrs(), "','")), cluster.Close, nil
}

// fillOutbox makes an outbox in a PostgreSQL of its own.
func fillOutbox(ctx context.Context, run, n int64) (settings string, remove func(), err error) {
	url, remove, err := launchPostgres() //nolint:contextcheck // it ends with remove
	if err != nil {
		return "", nil, err
	}
	if err := fillTable(ctx, url, run, n); err != nil {
		remove()
		return "", nil, err
	}
	return fmt.Sprintf("    postgres: {url: '%s'}\n", url), remove, nil
}

func fillTable(ctx context.Context, url string, run, n int64) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }() // what matters is committed
	schema, err := outbox.Schema("")
	if err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, schema); err != nil {
		return err
	}
	rows := pgx.CopyFromSlice(int(n), func(i int) ([]any, error) {
		id := eventID{run: run, n: int64(i), sent: time.Now()}
		return []any{id.String(), eventType, fmt.Sprintf("k%d", i%relayKeys), fmt.Sprintf(`{"pad":"%s"}`, strings.Repeat("x", bodySize/2))}, nil
	})
	_, err = conn.CopyFrom(ctx, pgx.Identifier{"spendhook_outbox"}, []string{"id", "event", "key", "metadata"}, rows)
	return err
}
