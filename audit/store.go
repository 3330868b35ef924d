package audit

import (
	"context"
	_ "embed" // the scripts
	"fmt"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/redis/go-redis/v9"
)

// logKey is the key of the log: a sorted set of entries as JSON by the time of recording, in unix µs. An
// entry that is added twice is in the set once. No other key has its hash tag.
const logKey = "sh:{audit}:log"

var (
	//go:embed lua/add.lua
	addSource string
	addScript = redis.NewScript(addSource)

	//go:embed lua/trim.lua
	trimSource string
	trimScript = redis.NewScript(trimSource)
)

// add adds encoded entries that the log does not have, and returns their number. After an error the
// entries may be added.
func (l *Log) add(ctx context.Context, entries [][]byte) (int, error) {
	args := make([]any, len(entries))
	for i, e := range entries {
		args[i] = e
	}
	added, err := addScript.Run(ctx, l.opts.Client, []string{logKey}, args...).Int()
	if err != nil {
		return 0, fmt.Errorf("write audit entries: %w", err)
	}
	return added, nil
}

// encode accepts invalid UTF-8, so that no entry is lost because of it.
func encode(e Entry) ([]byte, error) { return json.Marshal(e, jsontext.AllowInvalidUTF8(true)) }

// before reads up to readBatch entries, newest first, that were recorded between two times in unix
// ms, both inclusive, and before the place, if any.
func (l *Log) before(ctx context.Context, place string, from, to int64) ([]redis.Z, error) {
	end := strconv.FormatInt(to, 10) + "999"
	if place != "" {
		end = "(" + place
	}
	found, err := l.opts.Client.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{
		Key: logKey, ByScore: true, Rev: true, Start: end, Stop: strconv.FormatInt(from, 10) + "000", Count: readBatch,
	}).Result()
	if err != nil {
		return nil, fmt.Errorf("read audit entries: %w", err)
	}
	return found, nil
}

// decode returns an entry of the log and its place.
func decode(z redis.Z) (e Entry, place string, err error) {
	place = strconv.FormatInt(int64(z.Score), 10)
	text, _ := z.Member.(string)
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		return Entry{}, "", fmt.Errorf("audit entry at %s: %w", place, err)
	}
	e.RecordedAt = time.UnixMilli(int64(z.Score) / 1000)
	return e, place, nil
}

// trim removes expired entries, and then the oldest entries beyond MaxEntries, some of them at a time.
// It logs the number of the latter.
func (l *Log) trim(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, trimTimeout)
	defer cancel()
	now := any("") // Redis's time: the clock of a replica must not remove entries
	if l.clock != nil {
		now = l.clock().UnixMicro()
	}
	counts, err := trimScript.Run(ctx, l.opts.Client, []string{logKey}, now, l.opts.Retention.Microseconds(), l.opts.MaxEntries).Int64Slice()
	if err != nil {
		return // tidy calls trim again
	}
	if counts[0] > 0 {
		l.opts.Logger.ErrorContext(ctx, "audit entries were removed before their retention: there are more than audit.max_entries", "entries", counts[0])
	}
	l.metrics.kept.Store(counts[1])
}
