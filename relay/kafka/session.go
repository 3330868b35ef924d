package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"spendhook/relay"
)

// session is one membership of the group.
type session struct {
	source *Source
	client *kgo.Client // callbacks may come before it is set, and use their own
	to     *relay.Sender
	fail   context.CancelCauseFunc // ends the session
	dead   chan struct{}           // of capacity 1: one goroutine writes dead records

	mu         sync.Mutex // guards partitions
	partitions map[place]*partition
}

// options are those of the member. Partitions come and go only between AllowRebalance and the next poll.
func (s *session) options(ctx context.Context) []kgo.Opt {
	return []kgo.Opt{
		kgo.ConsumerGroup(s.source.opts.Group),
		kgo.ConsumeTopics(s.source.opts.Topics...),
		// newest is carried out by prepare. A partition that appears later is read from its start.
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.FetchMaxBytes(fetchBytes),
		kgo.FetchMaxPartitionBytes(partitionBytes),
		kgo.FetchMaxWait(fetchWait),
		kgo.MaxDecompressBatchBytes(s.source.maxBatchBytes),
		kgo.KeepRetryableFetchErrors(), // else older brokers never report a missing topic
		kgo.RebalanceTimeout(rebalanceTime),
		kgo.BlockRebalanceOnPoll(),
		kgo.AutoCommitMarks(),
		kgo.AutoCommitInterval(commitEvery),
		kgo.AutoCommitCallback(s.committed),
		kgo.OnPartitionsAssigned(func(_ context.Context, client *kgo.Client, assigned map[string][]int32) {
			s.assign(ctx, client, assigned)
		}),
		kgo.OnPartitionsRevoked(func(ctx context.Context, client *kgo.Client, revoked map[string][]int32) {
			s.release(revoked)
			s.commit(ctx, client)
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, lost map[string][]int32) { s.release(lost) }),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerBatchMaxBytes(maxDeadBytes),
	}
}

// poll reads until ctx ends or there is an error, and returns it.
func (s *session) poll(ctx context.Context) error {
	for {
		fetches := s.client.PollRecords(ctx, maxPolled)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		fetches.EachPartition(func(fetched kgo.FetchTopicPartition) {
			if p := s.partition(place{fetched.Topic, fetched.Partition}); p != nil {
				p.take(ctx, &fetched.FetchPartition)
			}
		})
		err := s.errorOf(ctx, fetches)
		s.client.AllowRebalance()
		if err != nil {
			return err
		}
	}
}

// close waits for the streams, commits, and leaves the group. A join that is under way waits for members that died, as
// long as their sessions last: cut, which ends the client, bounds this. Then the offsets since the last commit are lost,
// and their records are sent again.
func (s *session) close(cut context.CancelFunc) {
	for _, p := range s.all() {
		p.running.Wait()
	}
	bound := time.AfterFunc(leaveTime, cut)
	defer bound.Stop()
	s.client.CloseAllowingRebalance()
}

// all are the partitions of this member.
func (s *session) all() []*partition {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.partitions))
}

func (s *session) partition(at place) *partition {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.partitions[at]
}

// errorOf is the first error that ends the session.
func (s *session) errorOf(ctx context.Context, fetches kgo.Fetches) (first error) {
	fetches.EachPartition(func(fetched kgo.FetchTopicPartition) {
		topic, number, err := fetched.Topic, fetched.Partition, fetched.Err
		if loss, ok := errors.AsType[*kgo.ErrDataLoss](err); ok {
			s.source.opts.Log.LogAttrs(ctx, slog.LevelError, "the brokers lost records, which may not have been read",
				slog.String("topic", topic), slog.Int("partition", int(number)),
				slog.Int64("first", loss.ResetTo), slog.Int64("last", loss.ConsumedTo-1))
			return
		}
		if err == nil || first != nil || passes(err) || unreadable(&fetched.FetchPartition) {
			return
		}
		if topic == "" { // an error of the membership
			first = fmt.Errorf("read as a member of group %s: %w", s.source.opts.Group, err)
			return
		}
		first = place{topic, number}.wrap("read records of", err)
	})
	return first
}

// passes reports whether the client goes on after an error by itself. A topic that is missing may stay so for ever, and
// is looked for again when the source is opened.
func passes(err error) bool {
	missing := errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.UnknownTopicID)
	return kerr.IsRetriable(err) && !missing && !errors.Is(err, kerr.CorruptMessage)
}

// unreadable reports whether the next batch of a partition cannot be read: it is corrupt or too large. Such an error has
// no type, but a fetch that has the end of the partition. The client passes over a batch of unknown format, so that the
// session must end.
func unreadable(fetched *kgo.FetchPartition) bool {
	err := fetched.Err
	if err == nil || strings.HasPrefix(err.Error(), "unknown magic") {
		return false
	}
	_, answered := errors.AsType[*kerr.Error](err)
	return errors.Is(err, kerr.CorruptMessage) || !answered && fetched.HighWatermark > 0
}

func (p place) wrap(action string, err error) error {
	return fmt.Errorf("%s %s/%d: %w", action, p.topic, p.number, err)
}

// assign starts to send partitions.
func (s *session) assign(ctx context.Context, client *kgo.Client, assigned map[string][]int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for topic, numbers := range assigned {
		for _, number := range numbers {
			at := place{topic, number}
			s.partitions[at] = newPartition(ctx, s, client, at)
		}
	}
	client.ResumeFetchPartitions(assigned) // an earlier assignment may have ended while they were paused
	s.show()
}

// show says whether partitions are read, and whether one of them is held. The caller holds s.mu.
func (s *session) show() {
	s.to.Active(len(s.partitions) > 0)
	s.to.Hold(slices.ContainsFunc(slices.Collect(maps.Values(s.partitions)), func(p *partition) bool { return p.unreadable }))
}

// release ends the streams of partitions, and returns when the outcomes of their last requests are settled.
func (s *session) release(gone map[string][]int32) {
	var ending []*partition
	for topic, numbers := range gone {
		for _, number := range numbers {
			if p := s.partition(place{topic, number}); p != nil {
				p.stop()
				ending = append(ending, p)
			}
		}
	}
	for _, p := range ending {
		p.running.Wait()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range ending {
		delete(s.partitions, p.place)
	}
	s.show()
}

// commit commits settled offsets before their partitions go.
func (s *session) commit(ctx context.Context, client *kgo.Client) {
	ctx, cancel := context.WithTimeout(ctx, commitTime)
	defer cancel()
	if err := client.CommitMarkedOffsets(ctx); err != nil {
		s.source.commits.Log(ctx, slog.String("exception.message", err.Error()))
	}
}

// committed is called after each commit that is not the last one. What is not committed is in the next commit, too.
func (s *session) committed(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, answer *kmsg.OffsetCommitResponse, err error) {
	if err == nil {
		err = refusal(answer)
	}
	if err == nil || errors.Is(err, context.Canceled) {
		return
	}
	s.source.commits.Log(context.Background(), slog.String("exception.message", err.Error()))
	if denied(err) {
		s.fail(fmt.Errorf("as group %s: %w", s.source.opts.Group, err))
	}
}

// denied reports whether commits fail until an operator acts. After other errors the client commits or joins again.
func denied(err error) bool {
	return errors.Is(err, kerr.GroupAuthorizationFailed) || errors.Is(err, kerr.TopicAuthorizationFailed) ||
		errors.Is(err, kerr.OffsetMetadataTooLarge) || errors.Is(err, kerr.InvalidCommitOffsetSize)
}

// refusal is the first error in the answer to a commit.
func refusal(answer *kmsg.OffsetCommitResponse) error {
	for _, topic := range answer.Topics {
		for _, p := range topic.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return place{topic.Topic, p.Partition}.wrap("commit offsets of", err)
			}
		}
	}
	return nil
}

// assigned are the partitions of this member, by topic.
func (s *session) assigned() map[string][]int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	assigned := make(map[string][]int32)
	for at := range s.partitions {
		assigned[at.topic] = append(assigned[at.topic], at.number)
	}
	return assigned
}
