package api

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/subscribers/certificate"
)

// ListEgressAddresses is GET /api/v1/egress-addresses.
func (s *server) ListEgressAddresses(context.Context, *request) (reply, error) {
	return s.egressAddresses()
}

// GetPublicEgressAddresses is GET /.well-known/egress-addresses.json.
func (s *server) GetPublicEgressAddresses(context.Context, *request) (reply, error) {
	rep, err := s.egressAddresses()
	return rep.with("Cache-Control", cacheable), err
}

// egressAddresses answers with the published addresses that have not ended.
func (s *server) egressAddresses() (reply, error) {
	all := s.opts.EgressAddresses()
	if len(all) == 0 {
		return reply{}, newProblem("NO_EGRESS_ADDRESSES", "The operator publishes no addresses from which deliveries come.")
	}
	now, shown := s.opts.Now(), []gen.EgressAddress{}
	for _, source := range all {
		if !source.Ended(now) {
			shown = append(shown, gen.EgressAddress{Cidr: source.Range.String(), ValidFrom: shownTime(source.From), ValidUntil: shownTime(source.Until)})
		}
	}
	return ok(gen.EgressAddresses{Addresses: shown}), nil
}

// shownTime returns nil for the zero time, so that it is left out.
func shownTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// GetEgressCertificate is GET /api/v1/egress-certificate.
func (s *server) GetEgressCertificate(ctx context.Context, q *request) (reply, error) {
	found, err := s.opts.Certificates.Get(ctx, q.company)
	if err != nil {
		return reply{}, err
	}
	return ok(shownCertificate(q.company, uuid.Nil, found)), nil
}

// SetEgressCertificate is PUT /api/v1/egress-certificate.
func (s *server) SetEgressCertificate(ctx context.Context, q *request, in gen.EgressCertificateInput) (reply, error) {
	q.auditTarget(&q.company, "egress_certificate", q.company.String())
	set, err := s.opts.Certificates.Set(ctx, q.company, certificate.Input{Chain: in.CertificateChain, PrivateKey: in.PrivateKey})
	if err != nil {
		return reply{}, err
	}
	q.auditDetail("x5t#S256 " + set.Thumbprint)
	return ok(shownCertificate(q.company, uuid.Nil, set)), nil
}

// DeleteEgressCertificate is DELETE /api/v1/egress-certificate.
func (s *server) DeleteEgressCertificate(ctx context.Context, q *request, _ gen.CompanyScope) (reply, error) {
	q.auditTarget(&q.company, "egress_certificate", q.company.String())
	return noContent(), s.opts.Certificates.Remove(ctx, q.company)
}

// GetSubscriberCertificate is GET /api/v1/subscribers/{uuid}/egress-certificate.
func (s *server) GetSubscriberCertificate(ctx context.Context, q *request, id gen.SubscriberPath) (reply, error) {
	if _, err := s.opts.Subscribers.Get(ctx, q.company, id); err != nil {
		return reply{}, err
	}
	found, err := s.opts.Certificates.Of(id).Get(ctx, q.company)
	if err != nil {
		return reply{}, err
	}
	return ok(shownCertificate(q.company, id, found)), nil
}

// SetSubscriberCertificate is PUT /api/v1/subscribers/{uuid}/egress-certificate.
func (s *server) SetSubscriberCertificate(ctx context.Context, q *request, id gen.SubscriberPath, in gen.EgressCertificateInput) (reply, error) {
	q.auditTarget(&q.company, "egress_certificate", id.String())
	set, err := s.opts.Certificates.Of(id).Set(ctx, q.company, certificate.Input{Chain: in.CertificateChain, PrivateKey: in.PrivateKey})
	if err != nil {
		return reply{}, err
	}
	q.auditDetail("x5t#S256 " + set.Thumbprint)
	return ok(shownCertificate(q.company, id, set)), nil
}

// DeleteSubscriberCertificate is DELETE /api/v1/subscribers/{uuid}/egress-certificate.
func (s *server) DeleteSubscriberCertificate(ctx context.Context, q *request, id gen.SubscriberPath, _ gen.CompanyScope) (reply, error) {
	q.auditTarget(&q.company, "egress_certificate", id.String())
	err := s.opts.Certificates.Of(id).Remove(ctx, q.company)
	if errors.Is(err, certificate.ErrNotFound) {
		if _, missing := s.opts.Subscribers.Get(ctx, q.company, id); missing != nil {
			err = missing
		}
	}
	return noContent(), err
}

// shownCertificate returns the published form, without the private key. The subscriber is uuid.Nil for the
// company's certificate.
func shownCertificate(company, subscriber uuid.UUID, c *certificate.Certificate) gen.EgressCertificate {
	shown := gen.EgressCertificate{
		CompanyUUID: company, Subject: c.Subject, Issuer: c.Issuer, Thumbprint: c.Thumbprint,
		NotBefore: c.NotBefore, NotAfter: c.NotAfter, UpdatedAt: c.UpdatedAt,
	}
	if subscriber != uuid.Nil {
		shown.SubscriberUUID = &subscriber
	}
	return shown
}
