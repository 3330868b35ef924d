package cards

import (
	"github.com/uptrace/bun"
)

// Narrow is what narrows a list of cards.
func Narrow(f Filter, q *bun.SelectQuery) *bun.SelectQuery { return narrow(f, q) }
