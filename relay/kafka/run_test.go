package kafka

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"spendhook/api/client"
	"spendhook/internal/waittest"
	"spendhook/relay"
)

func TestEachRecordIsAcceptedOnceInOrderOrDead(t *testing.T) {
	t.Parallel()
	const all, poison = 20_000, 200
	cluster := newCluster(t, 4)
	texts := many(all, 300)
	for i := 0; i < all; i += all / poison {
		key, _, _ := strings.Cut(texts[i], "/")
		texts[i] = key + "/!" + key
	}
	write(t, cluster, texts...)
	d := &daemon{}
	r := start(t, newSource(t, cluster), d)
	d.wait(t, all-poison)
	waittest.Until(t, "all offsets are committed", func() bool { return behind(cluster) == 0 })
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if accepted, duplicates := d.counts(); accepted != all-poison || duplicates != 0 {
		t.Errorf("%d accepted, %d duplicates", accepted, duplicates)
	}
	d.inOrder(t)
	for _, r := range readAll(t, cluster, dead, poison) {
		if string(r.Value) != "!"+string(r.Key) {
			t.Errorf("the value of key %s is %q", r.Key, r.Value)
		}
	}
	if n := cluster.PartitionInfo(dead, 0).HighWatermark; n != poison {
		t.Errorf("%d dead records", n)
	}
}

func TestPartitionsMoveWhileRecordsFlow(t *testing.T) {
	t.Parallel()
	const part = 4_000
	cluster := newCluster(t, 6)
	texts := many(5*part, 100)
	d := &daemon{}
	first := start(t, newSource(t, cluster), d)
	write(t, cluster, texts[:part]...)
	join(t, cluster, 1, 6)
	write(t, cluster, texts[part:2*part]...)
	second := start(t, newSource(t, cluster), d)
	write(t, cluster, texts[2*part:3*part]...)
	join(t, cluster, 2, 6)
	write(t, cluster, texts[3*part:4*part]...)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	write(t, cluster, texts[4*part:]...)
	join(t, cluster, 1, 6)
	d.wait(t, len(texts))
	if err := second.stop(); err != nil {
		t.Fatal(err)
	}
	d.inOrder(t)
	// Each partition is settled and committed before it moves.
	if accepted, duplicates := d.counts(); accepted != len(texts) || duplicates != 0 {
		t.Errorf("%d accepted, %d duplicates", accepted, duplicates)
	}
	if n := behind(cluster); n != 0 {
		t.Errorf("%d records are not committed", n)
	}
}

// A member that joins gets a partition only after the request that has its records is answered and committed.
func TestAPartitionMovesAfterItsRequestIsSettled(t *testing.T) {
	t.Parallel()
	const all = 400
	cluster := newCluster(t, 2)
	write(t, cluster, many(all, all)...)
	syncs := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.SyncGroup}, Group: group, Observe: true, Count: -1})
	d := &daemon{entered: make(chan struct{}, 1), leave: make(chan struct{})}
	start(t, newSource(t, cluster), d)
	<-d.entered
	start(t, newSource(t, cluster), d)
	if err := syncs.Wait(t.Context(), 3); err != nil { // the first member knows that it loses a partition
		t.Fatal(err)
	}
	close(d.leave)
	join(t, cluster, 2, 2)
	waittest.Until(t, "all offsets are committed", func() bool { return behind(cluster) == 0 })
	if accepted, duplicates := d.counts(); accepted != all || duplicates != 0 {
		t.Errorf("%d accepted, %d duplicates", accepted, duplicates)
	}
}

// The request that is under way at the stop is awaited, and its offsets are committed.
func TestAStopCommitsWhatWasSentLast(t *testing.T) {
	t.Parallel()
	cluster := newCluster(t, 1)
	write(t, cluster, many(500, 500)...)
	d := &daemon{entered: make(chan struct{}, 1), leave: make(chan struct{})}
	r := start(t, newSource(t, cluster), d)
	<-d.entered
	r.cancel()
	close(d.leave)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	accepted, _ := d.counts()
	if n := cluster.GroupInfo(group).Commits[topic][0].Offset; n == 0 || n != int64(accepted) {
		t.Errorf("%d is committed, %d were accepted", n, accepted)
	}
}

// A member that dies has sent records whose offsets are not committed.
func TestRecordsOfADeadMemberAreSentAgain(t *testing.T) {
	t.Parallel()
	const all = 1000
	cluster := newCluster(t, 2)
	write(t, cluster, many(all, 50)...)
	fault := cluster.Fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.OffsetCommit}, Group: group, Err: kerr.UnknownServerError, Count: -1,
	})
	d := &daemon{}
	first := start(t, newSource(t, cluster), d)
	d.wait(t, all)
	_ = first.stop()
	fault.Remove()
	start(t, newSource(t, cluster), d)
	waittest.Until(t, "all offsets are committed", func() bool { return behind(cluster) == 0 })
	if accepted, duplicates := d.counts(); accepted != all || duplicates != all {
		t.Errorf("%d accepted, %d duplicates", accepted, duplicates)
	}
	d.inOrder(t)
}

func TestACommitThatFailsIsRepeated(t *testing.T) {
	t.Parallel()
	cluster := newCluster(t, 1)
	write(t, cluster, many(10, 10)...)
	fault := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Group: group, Err: kerr.UnknownServerError, Count: 2})
	d := &daemon{}
	start(t, newSource(t, cluster), d)
	waittest.Until(t, "all offsets are committed", func() bool { return behind(cluster) == 0 })
	if n := fault.Hits(); n != 2 {
		t.Errorf("%d commits failed", n)
	}
	if _, duplicates := d.counts(); duplicates != 0 {
		t.Errorf("%d duplicates", duplicates)
	}
}

func TestACommitThatIsDeniedEndsRun(t *testing.T) {
	t.Parallel()
	cluster := newCluster(t, 1)
	write(t, cluster, many(10, 10)...)
	cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Group: group, Err: kerr.TopicAuthorizationFailed, Count: -1})
	r := start(t, newSource(t, cluster), &daemon{})
	<-r.ended
	if !errors.Is(r.err, kerr.TopicAuthorizationFailed) {
		t.Errorf("%v", r.err)
	}
}

func TestAFullPartitionIsPausedAndOthersGoOn(t *testing.T) {
	t.Parallel()
	const each = 10_000
	cluster := newCluster(t, 2)
	c := newClient(t, cluster, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	var records []*kgo.Record
	for i := range 2 * each {
		records = append(records, &kgo.Record{Topic: topic, Partition: int32(i % 2), Value: fmt.Append(nil, "p", i%2, "-", i)})
	}
	if err := c.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	soon := 1
	d := &daemon{refuse: func(id string) *client.ItemError {
		if strings.HasPrefix(id, "p0-") {
			return &client.ItemError{Code: "TOO_MANY_REQUESTS", RetryAfter: &soon}
		}
		return nil
	}}
	s := newSource(t, cluster)
	start(t, s, d)
	waittest.Until(t, "the partition whose events are refused is paused, and the other one is read", func() bool {
		g := cluster.GroupInfo(group)
		return slices.Equal(paused(s), []int32{0}) && g != nil && g.Commits[topic][1].Offset == cluster.PartitionInfo(topic, 1).HighWatermark
	})
	d.set(func(d *daemon) { d.refuse = nil })
	waittest.Until(t, "all offsets are committed", func() bool { return behind(cluster) == 0 })
	if _, duplicates := d.counts(); duplicates != 0 {
		t.Errorf("%d duplicates", duplicates)
	}
}

func TestADaemonThatIsAwayIsWaitedFor(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]error{
		"no answer": errors.New("connection refused"),
		"503":       &client.Error{Status: http.StatusServiceUnavailable, Code: "NOT_READY"},
		"429":       &client.Error{Status: http.StatusTooManyRequests, Code: "TOO_MANY_REQUESTS"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const all = 6000
			cluster := newCluster(t, 1)
			write(t, cluster, many(all, 20)...)
			d := &daemon{fail: fail}
			s := newSource(t, cluster)
			r := start(t, s, d)
			waittest.Until(t, "the partition is paused", func() bool { return len(paused(s)) == 1 })
			d.set(func(d *daemon) { d.fail = nil })
			d.wait(t, all)
			if err := r.stop(); err != nil {
				t.Fatal(err)
			}
			if accepted, duplicates := d.counts(); accepted != all || duplicates != 0 {
				t.Errorf("%d accepted, %d duplicates", accepted, duplicates)
			}
			d.inOrder(t)
		})
	}
}

func TestARecordThatIsTooOldEndsRunAndIsNotCommitted(t *testing.T) {
	t.Parallel()
	cluster := newCluster(t, 1)
	write(t, cluster, "a/a:1", "b/b:2", "old/old:3", "c/c:4")
	d := &daemon{refuse: func(id string) *client.ItemError {
		if id == "old:3" {
			return &client.ItemError{Code: "EVENT_TOO_OLD", Message: "too old"}
		}
		return nil
	}}
	s := newSource(t, cluster)
	r := start(t, s, d)
	<-r.ended
	if !errors.Is(r.err, relay.ErrTooOld) {
		t.Fatalf("%v", r.err)
	}
	if n := cluster.GroupInfo(group).Commits[topic][0].Offset; n != 2 {
		t.Errorf("%d is committed", n)
	}
	d.set(func(d *daemon) { d.refuse = nil }) // events.retention is longer
	start(t, s, d)
	d.wait(t, 4)
}

func TestADeadRecordThatCannotBeWrittenEndsRun(t *testing.T) {
	t.Parallel()
	cluster := newCluster(t, 1)
	write(t, cluster, "a/a:1", "b/!", "c/c:2")
	fault := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: dead, Err: kerr.TopicAuthorizationFailed, Count: -1})
	d := &daemon{}
	s := newSource(t, cluster)
	r := start(t, s, d)
	<-r.ended
	if !errors.Is(r.err, kerr.TopicAuthorizationFailed) || !strings.Contains(r.err.Error(), dead) {
		t.Fatalf("%v", r.err)
	}
	// What was accepted before it is settled nevertheless.
	if n := cluster.GroupInfo(group).Commits[topic][0].Offset; n != 1 {
		t.Errorf("%d is committed", n)
	}
	fault.Remove()
	start(t, s, d)
	waittest.Until(t, "all offsets are committed", func() bool { return behind(cluster) == 0 })
	if n := cluster.PartitionInfo(dead, 0).HighWatermark; n != 1 {
		t.Errorf("%d dead records", n)
	}
}

func TestALostMembershipEndsRun(t *testing.T) {
	t.Parallel()
	cluster := newCluster(t, 2)
	d := &daemon{}
	s := newSource(t, cluster)
	r := start(t, s, d)
	write(t, cluster, many(100, 10)...)
	d.wait(t, 100)
	cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Group: group, Err: kerr.UnknownMemberID, Count: 1})
	<-r.ended
	if !errors.Is(r.err, kerr.UnknownMemberID) {
		t.Fatalf("%v", r.err)
	}
	start(t, s, d)
	write(t, cluster, "new/new:1")
	d.wait(t, 101)
}

func TestATopicThatIsDeletedEndsRun(t *testing.T) {
	t.Parallel()
	for name, versions := range map[string]*kversion.Versions{
		"by id": kversion.Stable(), "by name": kversion.V2_8_0(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := newCluster(t, 1, kfake.MaxVersions(versions))
			write(t, cluster, "a/a:1")
			d := &daemon{}
			r := start(t, newSource(t, cluster), d)
			d.wait(t, 1)
			if err := cluster.DeleteTopic(topic); err != nil {
				t.Fatal(err)
			}
			<-r.ended
			if !errors.Is(r.err, kerr.UnknownTopicOrPartition) && !errors.Is(r.err, kerr.UnknownTopicID) {
				t.Errorf("%v", r.err)
			}
		})
	}
}

func TestLeadersThatMoveLoseNothing(t *testing.T) {
	t.Parallel()
	const part = 2000
	cluster := newCluster(t, 4)
	texts := many(5*part, 50)
	d := &daemon{}
	r := start(t, newSource(t, cluster), d)
	for i := range 5 {
		write(t, cluster, texts[i*part:(i+1)*part]...)
		cluster.ShufflePartitionLeaders()
		cluster.RehashCoordinators()
	}
	select {
	case <-r.ended:
		t.Fatal(r.err)
	default:
	}
	d.wait(t, len(texts))
	d.inOrder(t)
}

func TestRecordsThatWereDeletedBeforeTheyWereReadAreLogged(t *testing.T) {
	t.Parallel()
	cluster := newCluster(t, 1)
	write(t, cluster, "a/a:1")
	d := &daemon{}
	first := start(t, newSource(t, cluster), d)
	d.wait(t, 1)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	write(t, cluster, "a/a:2", "a/a:3", "a/a:4")
	if err := cluster.DeleteRecords(topic, 0, 3); err != nil {
		t.Fatal(err)
	}
	log := &lines{}
	start(t, newSource(t, cluster, logTo(log)), d)
	d.wait(t, 2)
	if !log.has(`"msg":"records were deleted before they were read","topic":"payments","partition":0,"first":1,"last":2`) {
		t.Errorf("logged %s", log.text.String())
	}
}

// Records of a transaction that was aborted are not read.
func TestOnlyCommittedTransactionsAreRead(t *testing.T) {
	t.Parallel()
	cluster := newCluster(t, 1)
	c := newClient(t, cluster, kgo.TransactionalID("tx"), kgo.DefaultProduceTopic(topic))
	for _, end := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
		if err := c.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		r := &kgo.Record{Value: fmt.Append(nil, "id-", bool(end))}
		if err := c.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := c.EndTransaction(t.Context(), end); err != nil {
			t.Fatal(err)
		}
	}
	d := &daemon{}
	r := start(t, newSource(t, cluster), d)
	d.wait(t, 1)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if len(d.accepted) != 1 || d.accepted[0] != "id-true" {
		t.Errorf("accepted %v", d.accepted)
	}
}
