package config

import "spendhook/internal/invalid"

// Default is what Load begins with.
func Default() Config { return defaults() }

// Validate is what Load has to say of c.
func (c *Config) Validate() error {
	var problems invalid.Error
	c.validate(&problems)
	return problems.OrNil()
}
