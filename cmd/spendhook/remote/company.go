package remote

import (
	"context"

	"github.com/google/uuid"
)

type companyCmd struct {
	group

	Erase companyEraseCmd `cmd:"" help:"Erase what a company has now: subscribers, secrets, payloads, recorded answers (scope platform)." example:"spendhook company erase 6f1c2a7e-3b0d-4a53-9c1c-0f5b8f0d2a11 --wait --yes"`
}

type companyEraseCmd struct {
	careful
	UUID uuid.UUID `arg:"" name:"uuid" help:"UUID of the company."`
	Wait bool      `help:"Show the progress until the job ends (scope deliveries:read)."`
}

// Run starts the job that does it.
func (c *companyEraseCmd) Run(ctx context.Context, s *session) error {
	if err := s.mind(c.careful, "Remove all subscribers, secrets, payloads and answers of company %s permanently?", c.UUID); err != nil {
		return err
	}
	answer, err := s.EraseCompanyWithResponse(ctx, c.UUID)
	if err != nil {
		return err
	}
	if !c.Wait {
		return s.output.print(s.term.Out, answer.Body)
	}
	s.connection.CompanyUUID = &c.UUID
	return s.await(ctx, deliveryJob(s, answer.JSON202.UUID))
}
