package kafka

import (
	"github.com/twmb/franz-go/pkg/kgo"

	"spendhook/relay"
)

// prefix finds the offset to commit for a partition, whose records are settled in any order. It goes by the order of
// reading, since offsets repeat when brokers lose the end of a partition. It is not safe for concurrent use.
type prefix struct {
	entries []*entry                 // in the order of reading, from the first one that is not settled
	open    map[*relay.Record]*entry // those that are not settled
}

type entry struct {
	original *kgo.Record // nil: it is settled
	end      kgo.EpochOffset
}

func newPrefix() *prefix { return &prefix{open: make(map[*relay.Record]*entry)} }

// add appends a record that was read.
func (p *prefix) add(r *relay.Record, original *kgo.Record) {
	e := &entry{original: original, end: kgo.EpochOffset{Epoch: original.LeaderEpoch, Offset: original.Offset + 1}}
	p.entries = append(p.entries, e)
	p.open[r] = e
}

// original is what was read for a record that is not settled.
func (p *prefix) original(r *relay.Record) *kgo.Record { return p.open[r].original }

// settle settles records. end is the offset after the last one before which all are settled; moved: there is one that
// an earlier call did not return.
func (p *prefix) settle(outcomes []relay.Outcome) (end kgo.EpochOffset, moved bool) {
	for _, o := range outcomes {
		p.open[o.Record].original = nil
		delete(p.open, o.Record)
	}
	for len(p.entries) > 0 && p.entries[0].original == nil {
		end, moved = p.entries[0].end, true
		p.entries[0] = nil
		p.entries = p.entries[1:]
	}
	return end, moved
}

// size is how many records were read after the end.
func (p *prefix) size() int { return len(p.entries) }
