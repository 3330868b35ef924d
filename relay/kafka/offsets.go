package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The times that a request for offsets may have instead of a time.
const (
	logEnd   = -1
	logStart = -2
)

// readCommitted is the isolation level of requests.
const readCommitted = 1

// offsets are those of partitions, by topic.
type offsets map[string]map[int32]int64

func (o offsets) set(topic string, number int32, offset int64) {
	if o[topic] == nil {
		o[topic] = make(map[int32]int64)
	}
	o[topic][number] = offset
}

// Check returns an error that names everything which prevents reading: brokers that cannot be reached, topics or a
// dead-letter topic that are missing, a dead-letter topic that is compacted, a group that may not be used. It is also an
// error when the dead-letter topic does not take the largest records. Check waits for at most half a minute.
func (s *Source) Check(ctx context.Context) error {
	return s.ask(ctx, func(ctx context.Context, client *kgo.Client, _ []kmsg.MetadataResponseTopic, _ offsets) error {
		return s.checkMaxBytes(ctx, client)
	})
}

// prepare checks what prevents reading, and carries out newest.
func (s *Source) prepare(ctx context.Context) error {
	return s.ask(ctx, func(ctx context.Context, client *kgo.Client, topics []kmsg.MetadataResponseTopic, committed offsets) error {
		if s.opts.Start != newest {
			return nil
		}
		return s.skip(ctx, client, topics, committed)
	})
}

// ask calls then with a client that is not a member, the topics that are read, and the offsets of the group.
func (s *Source) ask(ctx context.Context, then func(context.Context, *kgo.Client, []kmsg.MetadataResponseTopic, offsets) error) error {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	client, err := kgo.NewClient(s.clients...)
	if err != nil {
		return fmt.Errorf("open the client: %w", err)
	}
	defer client.Close()
	if err := client.Ping(ctx); err != nil {
		return fmt.Errorf("reach the brokers: %w", err)
	}
	topics, topicsErr := s.topics(ctx, client)
	committed, groupErr := s.committedOffsets(ctx, client)
	if err := errors.Join(topicsErr, s.checkPolicy(ctx, client), groupErr); err != nil {
		return err
	}
	return then(ctx, client, topics, committed)
}

// topics describes the topics that are read. It is an error when one of them or the dead-letter topic is missing.
func (s *Source) topics(ctx context.Context, client *kgo.Client) (topics []kmsg.MetadataResponseTopic, err error) {
	request := kmsg.NewPtrMetadataRequest()
	for _, topic := range append([]string{s.opts.DeadLetterTopic}, s.opts.Topics...) {
		request.Topics = append(request.Topics, kmsg.MetadataRequestTopic{Topic: &topic})
	}
	answer, err := request.RequestWith(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("look for the topics: %w", err)
	}
	var problems []error
	for _, t := range answer.Topics {
		if t.Topic == nil {
			continue
		}
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
			problems = append(problems, fmt.Errorf("look for topic %q: %w", *t.Topic, err))
		} else if *t.Topic != s.opts.DeadLetterTopic {
			topics = append(topics, t)
		}
	}
	return topics, errors.Join(problems...)
}

// committedOffsets returns the offsets of the group.
func (s *Source) committedOffsets(ctx context.Context, client *kgo.Client) (offsets, error) {
	wrap := func(err error) error { return fmt.Errorf("read the offsets of group %q: %w", s.opts.Group, err) }
	request := kmsg.NewPtrOffsetFetchRequest()
	request.Group = s.opts.Group
	request.RequireStable = true
	answer, err := request.RequestWith(ctx, client)
	if err != nil {
		return nil, wrap(err)
	}
	found := make(offsets)
	switch err := kerr.ErrorForCode(answer.ErrorCode); {
	case errors.Is(err, kerr.GroupIDNotFound): // it is made by the first member
		return found, nil
	case err != nil:
		return nil, wrap(err)
	}
	for _, topic := range answer.Topics {
		for _, p := range topic.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return nil, wrap(err)
			}
			if p.Offset >= 0 {
				found.set(topic.Topic, p.Partition, p.Offset)
			}
		}
	}
	return found, nil
}

// skip commits the ends of the topics without a committed offset. That is done once for a topic: if each member began
// at the end that it sees when it joins, the records before would be lost.
func (s *Source) skip(ctx context.Context, client *kgo.Client, topics []kmsg.MetadataResponseTopic, committed offsets) error {
	partitions, ids := make(map[string][]int32), make(map[string][16]byte)
	for _, t := range topics {
		if len(committed[*t.Topic]) > 0 {
			continue
		}
		ids[*t.Topic] = t.TopicID
		for _, p := range t.Partitions {
			partitions[*t.Topic] = append(partitions[*t.Topic], p.Partition)
		}
	}
	if len(partitions) == 0 {
		return nil
	}
	ends, err := list(ctx, client, partitions, logEnd)
	if err != nil {
		return err
	}
	if err := commitEnds(ctx, client, s.opts.Group, ends, ids); err != nil {
		return fmt.Errorf("begin at the newest records: %w", err)
	}
	return nil
}

// commitEnds commits offsets of a group without members.
func commitEnds(ctx context.Context, client *kgo.Client, group string, ends offsets, ids map[string][16]byte) error {
	request := kmsg.NewPtrOffsetCommitRequest()
	request.Group = group
	for topic, numbers := range ends {
		t := kmsg.NewOffsetCommitRequestTopic()
		t.Topic, t.TopicID = topic, ids[topic]
		for number, end := range numbers {
			p := kmsg.NewOffsetCommitRequestTopicPartition()
			p.Partition, p.Offset = number, end
			t.Partitions = append(t.Partitions, p)
		}
		request.Topics = append(request.Topics, t)
	}
	answer, err := request.RequestWith(ctx, client)
	if err == nil {
		err = refusal(answer)
	}
	if errors.Is(err, kerr.UnknownMemberID) || errors.Is(err, kerr.IllegalGeneration) {
		return fmt.Errorf("group %q has members, and a topic without offsets: stop all members once: %w", group, err)
	}
	return err
}

// list returns the offsets at the start or the end of partitions.
func list(ctx context.Context, client *kgo.Client, partitions map[string][]int32, at int64) (offsets, error) {
	request := kmsg.NewPtrListOffsetsRequest()
	request.IsolationLevel = readCommitted
	for topic, numbers := range partitions {
		t := kmsg.NewListOffsetsRequestTopic()
		t.Topic = topic
		for _, number := range numbers {
			p := kmsg.NewListOffsetsRequestTopicPartition()
			p.Partition, p.Timestamp = number, at
			t.Partitions = append(t.Partitions, p)
		}
		request.Topics = append(request.Topics, t)
	}
	answer, err := request.RequestWith(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("ask for offsets: %w", err)
	}
	found := make(offsets)
	for _, topic := range answer.Topics {
		for _, p := range topic.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return nil, place{topic.Topic, p.Partition}.wrap("ask for offsets of", err)
			}
			found.set(topic.Topic, p.Partition, p.Offset)
		}
	}
	return found, nil
}

// Behind is the number of records after the committed offset of each partition that is assigned to this member, by
// "topic/partition"; markers of transactions count. Those of other members are theirs to report. It is an error while
// Run does not read.
func (s *Source) Behind(ctx context.Context) (map[string]int64, error) {
	s.mu.Lock()
	session := s.open
	s.mu.Unlock()
	if session == nil {
		return nil, errors.New("the source is not open")
	}
	assigned := session.assigned()
	behind := make(map[string]int64)
	if len(assigned) == 0 {
		return behind, nil
	}
	committed, err := s.committedOffsets(ctx, session.client)
	if err != nil {
		return nil, err
	}
	starts, err := list(ctx, session.client, assigned, logStart)
	if err != nil {
		return nil, err
	}
	ends, err := list(ctx, session.client, assigned, logEnd)
	if err != nil {
		return nil, err
	}
	for topic, numbers := range ends {
		for number, end := range numbers {
			first := max(committed[topic][number], starts[topic][number])
			behind[topic+"/"+strconv.Itoa(int(number))] = max(end-first, 0)
		}
	}
	return behind, nil
}
