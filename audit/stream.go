package audit

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/redis/go-redis/v9"
)

// streamKey is the key of the stream. No other key has its hash tag.
const streamKey = "sh:{audit}:log"

// entryField is the only field of a stream entry: the Entry as JSON.
const entryField = "e"

// add appends entries in one round trip. After an error some of them may be stored.
func (l *Log) add(ctx context.Context, entries []Entry) error {
	pipe := l.opts.Client.Pipeline()
	for _, e := range entries {
		text, err := encode(e)
		if err != nil {
			return fmt.Errorf("encode audit entry: %w", err)
		}
		pipe.XAdd(ctx, &redis.XAddArgs{Stream: streamKey, Values: []any{entryField, text}})
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("write audit entries: %w", err)
	}
	return nil
}

// encode accepts invalid UTF-8, so that no entry is lost because of it.
func encode(e Entry) ([]byte, error) { return json.Marshal(e, jsontext.AllowInvalidUTF8(true)) }

// stored is an entry with its place in the stream.
type stored struct {
	Entry
	id string
}

// before reads up to readBatch entries, newest first, that were recorded between two times in unix
// ms, both inclusive. With a place, it reads only entries before that one.
func (l *Log) before(ctx context.Context, place string, from, to int64) ([]stored, error) {
	end := strconv.FormatInt(to, 10)
	if place != "" {
		end = "(" + place
	}
	messages, err := l.opts.Client.XRevRangeN(ctx, streamKey, end, strconv.FormatInt(from, 10), readBatch).Result()
	if err != nil {
		return nil, fmt.Errorf("read audit entries: %w", err)
	}
	list := make([]stored, len(messages))
	for i, m := range messages {
		text, _ := m.Values[entryField].(string)
		list[i].id = m.ID
		if err := json.Unmarshal([]byte(text), &list[i].Entry); err != nil {
			return nil, fmt.Errorf("audit entry %s: %w", m.ID, err)
		}
		list[i].RecordedAt = timeOf(m.ID)
	}
	return list, nil
}

// timeOf is the time in a stream id, "<unix ms>-<number>".
func timeOf(id string) time.Time {
	text, _, _ := strings.Cut(id, "-")
	ms, _ := strconv.ParseInt(text, 10, 64) // Redis created the id
	return time.UnixMilli(ms)
}

// trim removes expired entries, and then the oldest entries beyond MaxEntries. It logs the number of
// the latter. Redis removes whole blocks, at most 10,000 entries at a time, so some stay for a while.
func (l *Log) trim(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, trimTimeout)
	defer cancel()
	oldest := strconv.FormatInt(l.opts.Now().Add(-l.opts.Retention).UnixMilli(), 10)
	pipe := l.opts.Client.Pipeline()
	expired := pipe.XTrimMinIDApprox(ctx, streamKey, oldest, 0)
	cut, left := pipe.XTrimMaxLenApprox(ctx, streamKey, int64(l.opts.MaxEntries), 0), pipe.XLen(ctx, streamKey)
	_, err := pipe.Exec(ctx)
	if cut.Val() > 0 && expired.Val() == 0 { // if some had expired, the others may have expired too
		l.opts.Logger.ErrorContext(ctx, "audit entries were removed before their retention: there are more than audit.max_entries", "entries", cut.Val())
	}
	if err == nil {
		l.metrics.kept.Store(left.Val())
	}
}
