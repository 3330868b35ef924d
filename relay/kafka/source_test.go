package kafka

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"spendhook/internal/devca"
	"spendhook/internal/waittest"
)

func logTo(l *lines) func(*Options) {
	return func(o *Options) { o.Log = slog.New(slog.NewJSONHandler(l, nil)) }
}

func fromTheEnd(o *Options) { o.Start = newest }

func TestNewNamesAllWrongOptions(t *testing.T) {
	t.Parallel()
	_, err := New(Options{
		Topics: []string{"a"}, DeadLetterTopic: "a", Start: "middle", SASL: &SASL{Mechanism: "md5", User: "u", Password: "hidden"},
		Log: slog.New(slog.DiscardHandler),
	})
	for _, want := range []string{"Brokers is missing", "Group is missing", `dead-letter topic "a"`, `"middle"`, `"md5"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, without %s", err, want)
		}
	}
	if strings.Contains(fmt.Sprint(err), "hidden") {
		t.Errorf("the password is in %v", err)
	}
}

func TestCheckNamesAllProblems(t *testing.T) {
	t.Parallel()
	cluster := newCluster(t, 1)
	s := newSource(t, cluster, func(o *Options) {
		o.Topics, o.DeadLetterTopic = []string{topic, "no-such-topic"}, "no-dead-topic"
	})
	err := s.Check(t.Context())
	for _, want := range []string{`"no-such-topic"`, `"no-dead-topic"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, without %s", err, want)
		}
	}
	if err := newSource(t, cluster).Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestCheckOfTheDeadLetterTopic(t *testing.T) {
	t.Parallel()
	cluster := newCluster(t, 1)
	create(t, cluster, "small", "max.message.bytes", "1050000") // a little more than that of the topic
	create(t, cluster, "compacted", "cleanup.policy", "compact")
	to := func(name string) *Source {
		return newSource(t, cluster, func(o *Options) { o.DeadLetterTopic = name })
	}
	for name, want := range map[string]string{"small": "max.message.bytes", "compacted": "is compacted"} {
		if err := to(name).Check(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, without %s", name, err, want)
		}
	}
	if err := to("compacted").prepare(t.Context()); err == nil || !strings.Contains(err.Error(), "is compacted") {
		t.Error(err)
	}
	if err := to("small").prepare(t.Context()); err != nil {
		t.Error(err)
	}
	cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeConfigs}, Err: kerr.TopicAuthorizationFailed, Count: -1})
	if err := to("small").Check(t.Context()); err != nil {
		t.Errorf("the user may not read settings: %v", err)
	}
}

func TestCheckOfBrokersThatAreAway(t *testing.T) {
	t.Parallel()
	cluster := newCluster(t, 1)
	s := newSource(t, cluster)
	cluster.Close()
	if err := s.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "reach the brokers") {
		t.Errorf("%v", err)
	}
}

func TestRunOfAMissingTopicReturns(t *testing.T) {
	t.Parallel()
	s := newSource(t, newCluster(t, 1), func(o *Options) { o.Topics = []string{"no-such-topic"} })
	if err := s.Run(t.Context(), newSender(&daemon{})); err == nil || !strings.Contains(err.Error(), "no-such-topic") {
		t.Errorf("%v", err)
	}
}

func TestRunReturnsNilWhenItIsStoppedBeforeItReads(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := newSource(t, newCluster(t, 1)).Run(ctx, newSender(&daemon{})); err != nil {
		t.Error(err)
	}
}

func TestAuthentication(t *testing.T) {
	t.Parallel()
	for _, mechanism := range []string{"plain", "scram-sha-256", "scram-sha-512"} {
		t.Run(mechanism, func(t *testing.T) {
			t.Parallel()
			cluster := newCluster(t, 1, kfake.EnableSASL(), kfake.Superuser(strings.ToUpper(mechanism), "relay", "right"))
			with := func(o *Options) { o.SASL = &SASL{Mechanism: mechanism, User: "relay", Password: "right"} }
			if err := newSource(t, cluster, with).Check(t.Context()); err != nil {
				t.Error(err)
			}
			err := newSource(t, cluster, with, func(o *Options) { o.SASL.Password = "wrong-password" }).Check(t.Context())
			if err == nil || strings.Contains(err.Error(), "wrong-password") {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestTheStartIsNewestOnlyOnce(t *testing.T) {
	t.Parallel()
	cluster := newCluster(t, 2)
	write(t, cluster, many(20, 10)...)
	d := &daemon{}
	first := start(t, newSource(t, cluster, fromTheEnd), d)
	join(t, cluster, 1, 2)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	// What is written while no relay runs, and to partitions that it has not seen, is read.
	c := newClient(t, cluster)
	request := kmsg.NewPtrCreatePartitionsRequest()
	more := kmsg.NewCreatePartitionsRequestTopic()
	more.Topic, more.Count = topic, 4
	request.Topics = append(request.Topics, more)
	if _, err := request.RequestWith(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	manual := newClient(t, cluster, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for n := range int32(4) {
		r := &kgo.Record{Topic: topic, Partition: n, Value: fmt.Append(nil, "new-", n)}
		if err := manual.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	second := start(t, newSource(t, cluster, fromTheEnd), d)
	d.wait(t, 4)
	if err := second.stop(); err != nil {
		t.Fatal(err)
	}
	if len(d.accepted) != 4 {
		t.Errorf("accepted %v", d.accepted)
	}
}

func TestNewestIsRefusedWhileTheGroupHasMembers(t *testing.T) {
	t.Parallel()
	cluster := newCluster(t, 1, kfake.SeedTopics(1, "refunds"))
	start(t, newSource(t, cluster, fromTheEnd), &daemon{})
	join(t, cluster, 1, 1)
	s := newSource(t, cluster, fromTheEnd, func(o *Options) { o.Topics = []string{topic, "refunds"} })
	if err := s.Run(t.Context(), newSender(&daemon{})); err == nil || !strings.Contains(err.Error(), "stop all members once") {
		t.Errorf("%v", err)
	}
}

func TestBehind(t *testing.T) {
	t.Parallel()
	cluster := newCluster(t, 1)
	write(t, cluster, many(10, 1)...)
	if err := cluster.DeleteRecords(topic, 0, 3); err != nil {
		t.Fatal(err)
	}
	d := &daemon{entered: make(chan struct{}, 1), leave: make(chan struct{})}
	s := newSource(t, cluster)
	if _, err := s.Behind(t.Context()); err == nil {
		t.Error("the source is not open")
	}
	start(t, s, d)
	<-d.entered
	if got, err := s.Behind(t.Context()); fmt.Sprint(got) != "map[payments/0:7]" {
		t.Errorf("%v, %v", got, err)
	}
	close(d.leave)
	waittest.Until(t, "nothing is behind", func() bool {
		got, err := s.Behind(t.Context())
		return err == nil && fmt.Sprint(got) == "map[payments/0:0]"
	})
}

func TestWhatAMappingReads(t *testing.T) {
	t.Parallel()
	r := record(&kgo.Record{
		Topic: topic, Partition: 3, Offset: 17, Key: []byte("k"), Timestamp: made, Value: []byte("v"),
		Headers: []kgo.RecordHeader{{Key: "a", Value: []byte("1")}, {Key: "b"}, {Key: "a", Value: []byte("2")}},
	})
	got := fmt.Sprintln(r.Key, string(r.Value), r.Headers, r.Position, r.From, r.Time.Equal(made))
	if want := "k v map[a:2 b:] 17 map[key:k offset:17 partition:3 topic:payments] true\n"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if r := record(&kgo.Record{Timestamp: time.UnixMilli(-1)}); !r.Time.IsZero() || r.Key != "" || len(r.Value) != 0 {
		t.Errorf("%+v", r)
	}
}

func TestADeadRecordHasItsReasonAndPlace(t *testing.T) {
	t.Parallel()
	r := deadRecord(&kgo.Record{
		Topic: topic, Partition: 3, Offset: 17, Key: []byte("k"), Timestamp: made,
		Headers: []kgo.RecordHeader{
			{Key: "a", Value: []byte("1")}, {Key: "spendhook-dead-reason", Value: []byte("earlier")}, {Key: "a", Value: []byte("2")},
		},
	}, dead, "no id")
	var headers []string
	for _, h := range r.Headers {
		headers = append(headers, h.Key+"="+string(h.Value))
	}
	want := "[a=1 a=2 spendhook-dead-reason=no id spendhook-source-topic=payments spendhook-source-partition=3 " +
		"spendhook-source-offset=17 spendhook-source-timestamp=2026-11-28T12:00:00Z]"
	if got := fmt.Sprint(headers); got != want || r.Topic != dead || string(r.Key) != "k" || r.Value != nil {
		t.Errorf("%+v, want headers %s", r, want)
	}
}

// A broker refuses a batch above max.message.bytes, but a record may be nearly as large.
func TestLargeDeadRecordsAreWritten(t *testing.T) {
	t.Parallel()
	cluster := newCluster(t, 1)
	c := newClient(t, cluster, kgo.ProducerBatchCompression(kgo.NoCompression()))
	for range 4 {
		value := make([]byte, 999_001)
		_, _ = rand.Read(value) // it cannot be compressed
		value[0] = '!'
		if err := c.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: value}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	start(t, newSource(t, cluster), &daemon{})
	if got := readAll(t, cluster, dead, 4); len(got[0].Value) != 999_001 {
		t.Errorf("%d bytes", len(got[0].Value))
	}
}

// Records that are too large together are written one by one, and of one that is too large alone the reason and the place.
func TestDeadRecordsInATopicForSmallOnes(t *testing.T) {
	t.Parallel()
	const limit, each, some = 50_000, 4000, 30
	cluster := newCluster(t, 1)
	create(t, cluster, "small", "max.message.bytes", strconv.Itoa(limit))
	var records []*kgo.Record
	for i := range some + 1 {
		value := make([]byte, each)
		if i == some {
			value = make([]byte, limit)
		}
		_, _ = rand.Read(value) // it cannot be compressed
		value[0] = '!'
		records = append(records, &kgo.Record{
			Topic: topic, Key: fmt.Append(nil, i), Value: value, Headers: []kgo.RecordHeader{{Key: "own", Value: []byte("1")}},
		})
	}
	if err := newClient(t, cluster).ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	write(t, cluster, "a/a:1")
	d := &daemon{}
	r := start(t, newSource(t, cluster, func(o *Options) { o.DeadLetterTopic = "small" }), d)
	d.wait(t, 1)
	waittest.Until(t, "all offsets are committed", func() bool { return behind(cluster) == 0 })
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if n := cluster.PartitionInfo("small", 0).HighWatermark; n != some+1 {
		t.Errorf("%d dead records", n)
	}
	for _, r := range readAll(t, cluster, "small", some+1) {
		headers := make(map[string]string)
		for _, h := range r.Headers {
			headers[h.Key] = string(h.Value)
		}
		if headers["spendhook-source-offset"] != string(r.Key) || headers["spendhook-dead-reason"] != "id: no such key" {
			t.Errorf("record %s has the headers %v", r.Key, headers)
		}
		left := headers["spendhook-left-out"]
		switch stub := string(r.Key) == strconv.Itoa(some); {
		case stub && (len(r.Value) != 0 || headers["own"] != "" || !strings.Contains(left, "too large")):
			t.Errorf("%d bytes, headers %v", len(r.Value), headers)
		case !stub && (len(r.Value) != each || headers["own"] != "1" || left != ""):
			t.Errorf("record %s of %d bytes has the headers %v", r.Key, len(r.Value), headers)
		}
	}
}

func TestDeadRecordsAreWrittenInSmallParts(t *testing.T) {
	t.Parallel()
	sized := func(sizes ...int) (list []*kgo.Record) {
		for _, n := range sizes {
			list = append(list, &kgo.Record{Value: make([]byte, n)})
		}
		return list
	}
	for _, tc := range []struct {
		sizes []int
		want  int
	}{
		{[]int{1, 2, 3}, 3},
		{[]int{maxWritten + 1, 1}, 1},
		{[]int{1, maxWritten, 1}, 1},
		{[]int{1, maxWritten - 1, 1}, 2},
	} {
		if got := fitting(sized(tc.sizes...)); got != tc.want {
			t.Errorf("%v: %d, want %d", tc.sizes, got, tc.want)
		}
	}
}

func TestConnectionsAreEncrypted(t *testing.T) {
	t.Parallel()
	from, until := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	ca, err := devca.New("test", from, until)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue(devca.Leaf{
		Name: "broker", Hosts: []string{"127.0.0.1"}, Usage: x509.ExtKeyUsageServerAuth, NotBefore: from, NotAfter: until,
	})
	if err != nil {
		t.Fatal(err)
	}
	server, err := pair.TLS()
	if err != nil {
		t.Fatal(err)
	}
	cluster := newCluster(t, 1, kfake.TLS(&tls.Config{Certificates: []tls.Certificate{server}, MinVersion: tls.VersionTLS13}))
	s := newSource(t, cluster, func(o *Options) { o.TLS = &tls.Config{RootCAs: ca.Pool(), MinVersion: tls.VersionTLS13} })
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
}
