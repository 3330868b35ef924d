package remote

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/google/uuid"

	"spendhook/api/client"
)

type cardCmd struct {
	group

	List      cardListCmd      `cmd:"" help:"List cards, the latest issued first." example:"spendhook card list --status ACTIVE --all"`
	Get       cardGetCmd       `cmd:"" help:"Show a card." example:"spendhook card get 3b2f0b57-6b2b-4b5e-8f57-3f0e3f3f7a10"`
	Create    cardCreateCmd    `cmd:"" help:"Create a card, or many cards from a file." example:"spendhook card create --type VIRTUAL --alias Travel --user-uuid 9d2f1c5e-8f0b-4a53-9c1c-0f5b8f0d2a11 --threshold 1500.50 --periodicity MONTHLY"`
	Lock      cardLockCmd      `cmd:"" help:"Lock a card." example:"spendhook card lock 3b2f0b57-6b2b-4b5e-8f57-3f0e3f3f7a10"`
	Unlock    cardUnlockCmd    `cmd:"" help:"Unlock a card." example:"spendhook card unlock 3b2f0b57-6b2b-4b5e-8f57-3f0e3f3f7a10"`
	Threshold cardThresholdCmd `cmd:"" help:"Change the spending threshold of a card." example:"spendhook card threshold 3b2f0b57-6b2b-4b5e-8f57-3f0e3f3f7a10 2000"`
	Cancel    cardCancelCmd    `cmd:"" help:"Cancel cards permanently." example:"spendhook card cancel 3b2f0b57-6b2b-4b5e-8f57-3f0e3f3f7a10 --yes"`
}

type cardListCmd struct {
	listFlags
	UserUUID    *uuid.UUID `name:"user-uuid" help:"Cards of this user."`
	Username    string     `help:"Cards of the user with exactly this username."`
	UserErpID   string     `name:"user-erp-id" help:"Cards of the user with this identifier in the company's ERP."`
	Status      string     `help:"ACTIVE, BLOCKED, CANCELLED or EXPIRED."`
	Periodicity string     `help:"DAILY, WEEKLY or MONTHLY."`
	Type        string     `help:"MASTER_WORLD_ELITE, MASTER_CORPORATE, MASTER_VIRTUAL, VISA_PHYSICAL or VISA_VIRTUAL."`
}

// Run lists the cards.
func (c *cardListCmd) Run(ctx context.Context, s *session) error {
	t := table{{"UUID", "uuid"}, {"LAST FOUR", "lastFour"}, {"TYPE", "type"}, {"STATUS", "status"}, {"NAME", "name"}, {"HOLDER", "holderUuid"}}
	return s.list(ctx, c.listFlags, t, pages(s, s.ListCards, *c))
}

// oneCard is the argument of a command about one card.
type oneCard struct {
	UUID uuid.UUID `arg:"" name:"uuid" help:"UUID of the card."`
}

type cardGetCmd struct{ oneCard }

// Run shows the card.
func (c *cardGetCmd) Run(ctx context.Context, s *session) error {
	return s.show(s.GetCard(ctx, c.UUID, fields[client.GetCardParams](s)))
}

type cardCreateCmd struct {
	confirmation
	Type         string     `help:"VIRTUAL or PHYSICAL."`
	Alias        string     `help:"Purpose of the card."`
	UserUUID     *uuid.UUID `name:"user-uuid" help:"The cardholder, an active user of the company."`
	Threshold    *string    `local:"" help:"Spending threshold (default: the company's credit limit)."`
	Periodicity  string     `help:"How often the threshold resets: DAILY, WEEKLY or MONTHLY."`
	BusinessType string     `help:"Model of a physical card: BUSINESS or WORLD_ELITE."`
	File         string     `short:"f" local:"" placeholder:"FILE|-" help:"JSON file with an array of up to 500 cards, with the fields of the API."`
	Wait         bool       `local:"" help:"With --file: show the progress until the job ends."`
}

// Run creates a card, or starts the job that creates many.
func (c *cardCreateCmd) Run(ctx context.Context, s *session) error {
	if c.File == "" && (c.Type == "" || c.Alias == "" || c.UserUUID == nil) {
		return UsageError("--type, --alias and --user-uuid are needed, or --file")
	}
	if err := s.confirm(c.confirmation, ""); err != nil {
		return err
	}
	if c.File == "" {
		body := fields[client.CardCreate](s, *c)
		body.Threshold = (*json.Number)(c.Threshold)
		return s.show(s.CreateCard(ctx, fields[client.CreateCardParams](s), *body))
	}
	body := client.CardBulkCreate{}
	if err := s.load(c.File, &body.CardsRequests); err != nil {
		return err
	}
	resp, err := s.CreateCards(ctx, fields[client.CreateCardsParams](s), body)
	return s.printJob(ctx, c.Wait, cardJob, resp, err)
}

type cardLockCmd struct{ oneCard }

// Run locks the card.
func (c *cardLockCmd) Run(ctx context.Context, s *session) error { return c.setLock(ctx, s, true) }

type cardUnlockCmd struct{ oneCard }

// Run unlocks the card.
func (c *cardUnlockCmd) Run(ctx context.Context, s *session) error { return c.setLock(ctx, s, false) }

func (c oneCard) setLock(ctx context.Context, s *session, lock bool) error {
	return s.show(s.LockCard(ctx, c.UUID, fields[client.LockCardParams](s), client.CardLock{Lock: lock}))
}

type cardThresholdCmd struct {
	oneCard
	Threshold string `arg:"" help:"Amount of the threshold."`
}

// Run sets the threshold of the card.
func (c *cardThresholdCmd) Run(ctx context.Context, s *session) error {
	if _, err := json.Number(c.Threshold).Float64(); err != nil {
		return UsageError(fmt.Sprintf("%q is not an amount", c.Threshold))
	}
	return s.show(s.SetCardThreshold(ctx, c.UUID, fields[client.SetCardThresholdParams](s), client.CardThreshold{Threshold: json.Number(c.Threshold)}))
}

type cardCancelCmd struct {
	confirmation
	UUIDs []uuid.UUID `arg:"" name:"uuid" help:"UUIDs of the cards, up to 100."`
}

// Run cancels the cards and prints a result for each.
func (c *cardCancelCmd) Run(ctx context.Context, s *session) error {
	names := make([]string, len(c.UUIDs))
	for i, id := range c.UUIDs {
		names[i] = id.String()
	}
	if err := s.confirm(c.confirmation, "Cancel %s permanently?", strings.Join(names, ", ")); err != nil {
		return err
	}
	t := table{{"UUID", "uuid"}, {"STATUS", "status"}}
	return s.list(ctx, listFlags{}, t, func(ctx context.Context, _ page) (*http.Response, error) {
		return s.CancelCards(ctx, fields[client.CancelCardsParams](s), client.CardsCancel{Uuids: c.UUIDs})
	})
}
