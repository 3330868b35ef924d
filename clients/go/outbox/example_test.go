package outbox_test

import (
	"context"
	"database/sql"
	"log"
	"os"

	"spendhook/clients/go/outbox"
)

// Marks a payment as paid. The event is sent if and only if that is committed.
func Example() {
	ctx := context.Background()
	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, "UPDATE payments SET paid = TRUE WHERE id = $1", 4711); err != nil {
		log.Fatal(err)
	}
	err = outbox.Insert(ctx, tx, outbox.Event{
		ID: "pay-4711", Event: "PAYMENT_PAID", Key: "account-17", Metadata: []byte(`{"amount":"12.50"}`),
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		log.Fatal(err)
	}
}
