package kafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"spendhook/api/client"
	"spendhook/internal/waittest"
	"spendhook/relay"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	topic = "payments"
	dead  = "payments-dead"
	group = "spendhook"
)

// newCluster starts three brokers with the topics.
func newCluster(t *testing.T, partitions int32, options ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	cluster, err := kfake.NewCluster(append([]kfake.Opt{
		kfake.NumBrokers(3), kfake.SeedTopics(partitions, topic),
	}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	create(t, cluster, dead, "max.message.bytes", "2097152")
	return cluster
}

// create creates a topic with a setting and one partition.
func create(t *testing.T, cluster *kfake.Cluster, name, setting, value string) {
	t.Helper()
	if err := cluster.CreateTopic(name, 1, map[string]string{setting: value}); err != nil {
		t.Fatal(err)
	}
}

func newClient(t *testing.T, cluster *kfake.Cluster, options ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(cluster.ListenAddrs()...)}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// write writes records whose keys and values are "key/id" to the topic.
func write(t *testing.T, cluster *kfake.Cluster, texts ...string) {
	t.Helper()
	c := newClient(t, cluster)
	var records []*kgo.Record
	for _, text := range texts {
		key, value, _ := strings.Cut(text, "/")
		records = append(records, &kgo.Record{Topic: topic, Key: []byte(key), Value: []byte(value)})
	}
	if err := c.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// many are n records of keys in turn, whose ids are "key:number".
func many(n, keys int) (texts []string) {
	for i := range n {
		texts = append(texts, fmt.Sprintf("k%d/k%d:%d", i%keys, i%keys, i))
	}
	return texts
}

// readAll returns the first n records of a topic.
func readAll(t *testing.T, cluster *kfake.Cluster, name string, n int) (records []*kgo.Record) {
	t.Helper()
	c := newClient(t, cluster, kgo.ConsumeTopics(name))
	for len(records) < n {
		fetches := c.PollFetches(t.Context())
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		records = append(records, fetches.Records()...)
	}
	return records
}

// daemon is an Emitter that remembers what it accepted, in order.
type daemon struct {
	mu         sync.Mutex
	accepted   []string
	known      map[string]bool
	duplicates int
	refuse     func(id string) *client.ItemError // nil: it accepts
	fail       error
	entered    chan struct{} // gets a value at each request
	leave      chan struct{} // when it is not nil, requests wait for its end
}

func (d *daemon) SendAll(ctx context.Context, list []client.EventInput) ([]client.EventItemResult, error) {
	if d.leave != nil {
		select {
		case d.entered <- struct{}{}:
		default:
		}
		select {
		case <-d.leave:
		case <-ctx.Done():
			return make([]client.EventItemResult, len(list)), ctx.Err()
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	results := make([]client.EventItemResult, len(list))
	if d.fail != nil {
		return results, d.fail
	}
	for i, e := range list {
		results[i] = d.answer(e.ID)
	}
	return results, nil
}

func (d *daemon) answer(id string) client.EventItemResult {
	if d.refuse != nil {
		if refusal := d.refuse(id); refusal != nil {
			return client.EventItemResult{Status: client.EventItemResultStatusREJECTED, Error: refusal}
		}
	}
	if d.known[id] {
		d.duplicates++
		return client.EventItemResult{Status: client.EventItemResultStatusDUPLICATE}
	}
	if d.known == nil {
		d.known = make(map[string]bool)
	}
	d.known[id] = true
	d.accepted = append(d.accepted, id)
	return client.EventItemResult{Status: client.EventItemResultStatusACCEPTED}
}

// set changes how the daemon answers.
func (d *daemon) set(change func(*daemon)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(d)
}

// counts are how many events were accepted, and how many were known.
func (d *daemon) counts() (accepted, duplicates int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.accepted), d.duplicates
}

// wait waits until n events are accepted.
func (d *daemon) wait(t *testing.T, n int) {
	t.Helper()
	waittest.Until(t, func() string {
		accepted, duplicates := d.counts()
		return fmt.Sprintf("%d events accepted, %d duplicates, want %d", accepted, duplicates, n)
	}, func() bool {
		accepted, _ := d.counts()
		return accepted >= n
	})
}

// inOrder fails the test when events of a key, whose ids are "key:number", were not accepted in order.
func (d *daemon) inOrder(t *testing.T) {
	t.Helper()
	last := make(map[string]int)
	for _, id := range d.accepted {
		key, text, _ := strings.Cut(id, ":")
		var n int
		if _, err := fmt.Sscan(text, &n); err != nil {
			t.Fatal(err)
		}
		if before, some := last[key]; some && n <= before {
			t.Errorf("%s was accepted after %s:%d", id, key, before)
		}
		last[key] = n
	}
}

// mapper takes the value as the id. A value that begins with ! has no event.
type mapper struct{}

func (mapper) Event(_ context.Context, r *relay.Record) (client.EventInput, string, error) {
	if len(r.Value) == 0 || r.Value[0] == '!' {
		return client.EventInput{}, "", errors.New("id: no such key")
	}
	return client.EventInput{ID: string(r.Value), Event: "PAID", Timestamp: r.Time}, r.Key, nil
}

func newSender(d *daemon) *relay.Sender {
	return relay.New(relay.Options{
		Name: "payments", Emitter: d, Mapper: mapper{}, Log: slog.New(slog.DiscardHandler),
		Metrics: relay.NewMetrics(prometheus.NewPedanticRegistry()),
	})
}

// newSource returns a source of the topic.
func newSource(t *testing.T, cluster *kfake.Cluster, change ...func(*Options)) *Source {
	t.Helper()
	o := Options{
		Brokers: cluster.ListenAddrs(), Topics: []string{topic}, Group: group, DeadLetterTopic: dead,
		Log: slog.New(slog.DiscardHandler),
	}
	for _, c := range change {
		c(&o)
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// running is a Run that may be stopped.
type running struct {
	cancel context.CancelFunc
	ended  chan struct{}
	err    error
}

// start runs a source until the test ends.
func start(t *testing.T, s *Source, d *daemon) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	r := &running{cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(r.ended)
		r.err = s.Run(ctx, newSender(d))
		t.Log("Run returned", r.err)
	}()
	t.Cleanup(func() {
		cancel()
		<-r.ended
	})
	return r
}

// stop ends a Run, and returns its error.
func (r *running) stop() error {
	r.cancel()
	<-r.ended
	return r.err
}

// join waits until the group has members to whom all partitions are assigned.
func join(t *testing.T, cluster *kfake.Cluster, members, partitions int) {
	t.Helper()
	waittest.Until(t, "the group is stable", func() bool {
		g := cluster.GroupInfo(group)
		return g != nil && g.State == "Stable" && len(g.Members) == members && g.NumAssigned() == partitions
	})
}

// behind is how many records of the topic are after the committed offsets.
func behind(cluster *kfake.Cluster) (n int64) {
	g := cluster.GroupInfo(group)
	for _, p := range cluster.PartitionInfos(topic) {
		n += p.HighWatermark
		if g != nil {
			n -= g.Commits[topic][p.Partition].Offset
		}
	}
	return n
}

// lines is a log that may be read during a test.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), text)
}

var made = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

// paused are the partitions of the topic that are not read now.
func paused(s *Source) []int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		return nil
	}
	return s.open.client.PauseFetchPartitions(nil)[topic]
}
