package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"spendhook/internal/waittest"
)

// writeTo writes values to a partition, each in a batch of its own.
func writeTo(t *testing.T, cluster *kfake.Cluster, partition int32, values ...string) {
	t.Helper()
	c := newClient(t, cluster, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for _, value := range values {
		if err := c.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Partition: partition, Value: []byte(value)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

// held reports whether a partition of the topic waits for a batch that cannot be read.
func held(s *Source, number int32) bool {
	s.mu.Lock()
	session := s.open
	s.mu.Unlock()
	if session == nil {
		return false
	}
	session.mu.Lock()
	defer session.mu.Unlock()
	p := session.partitions[place{topic, number}]
	return p != nil && p.unreadable
}

// awaitHeld waits until the first partition is held.
func (r *running) awaitHeld(t *testing.T, s *Source) {
	t.Helper()
	waittest.Until(t, "the partition is held", func() bool {
		select {
		case <-r.ended:
			t.Fatal(r.err)
		default:
		}
		return held(s, 0)
	})
}

func TestACorruptBatchHoldsItsPartition(t *testing.T) {
	t.Parallel()
	cluster := newCluster(t, 2)
	writeTo(t, cluster, 0, "p0:1")
	fault := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: topic, Partitions: []int32{0}, Err: kerr.CorruptMessage, Count: -1})
	d, log := &daemon{}, &lines{}
	s := newSource(t, cluster, logTo(log))
	s.heldTime = fullPause
	r := start(t, s, d)
	r.awaitHeld(t, s)
	writeTo(t, cluster, 1, "p1:1", "p1:2")
	d.wait(t, 2)
	if !log.has(`"msg":"a batch of records cannot be read; only its partition waits for it","topic":"payments","partition":0,"exception.message":"CORRUPT_MESSAGE`) {
		t.Errorf("logged %s", log.text.String())
	}
	fault.Remove()
	d.wait(t, 3)
	waittest.Until(t, "the partition is not held", func() bool { return !held(s, 0) })
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}

func TestABatchThatIsTooLargeHoldsItsPartition(t *testing.T) {
	t.Parallel()
	cluster := newCluster(t, 2)
	writeTo(t, cluster, 0, "p0:1", strings.Repeat("z", 500_000), "p0:2") // compressed it is small
	d := &daemon{}
	s := newSource(t, cluster)
	s.maxBatchBytes = 100_000
	r := start(t, s, d)
	r.awaitHeld(t, s)
	writeTo(t, cluster, 1, "p1:1")
	d.wait(t, 2)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	start(t, newSource(t, cluster), d)
	d.wait(t, 4)
}

// The records of a fetch before a batch that cannot be read are sent.
func TestRecordsBeforeABatchThatCannotBeReadAreSent(t *testing.T) {
	t.Parallel()
	d := &daemon{}
	cluster := newCluster(t, 1)
	s, c := newSource(t, cluster), newClient(t, cluster)
	ctx, cancel := context.WithCancelCause(t.Context())
	session := &session{source: s, client: c, to: newSender(d), fail: cancel, dead: make(chan struct{}, 1), partitions: make(map[place]*partition)}
	session.assign(ctx, c, map[string][]int32{topic: {0}})
	p := session.partition(place{topic, 0})
	defer p.running.Wait()
	defer cancel(nil)
	broken := errors.New("encoded crc 1 does not match calculated crc 2")
	p.take(ctx, &kgo.FetchPartition{
		Records: []*kgo.Record{{Topic: topic, Value: []byte("a:1")}}, Err: broken, HighWatermark: 2,
	})
	d.wait(t, 1)
	if p.unreadable {
		t.Error("the client has not come to the batch yet")
	}
	p.take(ctx, &kgo.FetchPartition{Err: broken, HighWatermark: 2})
	if got := fmt.Sprint(c.PauseFetchPartitions(nil)); !p.unreadable || got != "map[payments:[0]]" {
		t.Errorf("paused %s", got)
	}
}

func TestErrorsOfABatch(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fetched kgo.FetchPartition
		want    bool
	}{
		"none":                         {kgo.FetchPartition{HighWatermark: 1}, false},
		"corrupt, says the broker":     {kgo.FetchPartition{Err: kerr.CorruptMessage, HighWatermark: -1}, true},
		"corrupt":                      {fetchOf(2), true},
		"too large":                    {kgo.FetchPartition{Err: &kgo.ErrDecompressTooLarge{}, HighWatermark: 1}, true},
		"an unknown format":            {fetchOf(9), false}, // the client would pass over it
		"denied":                       {kgo.FetchPartition{Err: kerr.TopicAuthorizationFailed, HighWatermark: 1}, false},
		"of the client, not a fetch":   {kgo.FetchPartition{Err: errors.New("no offset")}, false},
		"records that the broker lost": {kgo.FetchPartition{Err: &kgo.ErrDataLoss{}}, false},
	} {
		if got := unreadable(&c.fetched); got != c.want {
			t.Errorf("%s: %v, want %v: %v", name, got, c.want, c.fetched.Err)
		}
	}
}

// fetchOf is what the client makes of a batch of a format, whose checksum is wrong.
func fetchOf(format byte) kgo.FetchPartition {
	batch := make([]byte, 100)
	binary.BigEndian.PutUint32(batch[8:], uint32(len(batch)-12))
	batch[16] = format
	answer := kmsg.NewFetchResponseTopicPartition()
	answer.HighWatermark, answer.RecordBatches = 1, batch
	fetched, _ := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{}, &answer, kgo.DefaultDecompressor(), nil)
	return fetched
}
