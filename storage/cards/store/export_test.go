package store

import (
	"github.com/uptrace/bun"

	"spendhook/storage/cards"
)

// Narrow is what narrows a list of cards.
func Narrow(f cards.Filter, q *bun.SelectQuery) *bun.SelectQuery { return narrow(f, q) }
