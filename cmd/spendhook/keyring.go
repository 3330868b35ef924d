package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"

	"spendhook/config"
	"spendhook/internal/redisx"
	"spendhook/internal/seal"
)

// encryptionKeyFile is the file in the data directory with the key that the daemon creates
// when none is configured.
const encryptionKeyFile = "encryption.key"

// openKeyring reads the encryption keys. Without a key in the settings, it calls local for the
// key of the data directory.
func openKeyring(cfg *config.Config, local func(path string) (seal.Key, error)) (*seal.Keyring, error) {
	current, err := encryptionKey(cfg, local)
	if errors.Is(err, fs.ErrNotExist) && usesLocalKey(cfg) {
		return nil, fmt.Errorf("encryption key: data directory %s has no %s; 'spendhook serve' creates it", cfg.DataDir, encryptionKeyFile)
	}
	if err != nil {
		return nil, fmt.Errorf("encryption key: %w", err)
	}
	var older []seal.Key
	for _, text := range cfg.Encryption.OldKeys {
		key, err := seal.ParseKey(text.Reveal())
		if err != nil {
			return nil, fmt.Errorf("old encryption key: %w", err)
		}
		older = append(older, key)
	}
	for _, path := range cfg.Encryption.OldKeyFiles {
		key, err := seal.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("old encryption key: %w", err)
		}
		older = append(older, key)
	}
	return seal.New(current, older...)
}

// usesLocalKey reports whether the key of the data directory is used.
func usesLocalKey(cfg *config.Config) bool {
	return cfg.Encryption.Key == "" && cfg.Encryption.KeyFile == ""
}

func encryptionKey(cfg *config.Config, local func(path string) (seal.Key, error)) (seal.Key, error) {
	switch {
	case cfg.Encryption.Key != "":
		return seal.ParseKey(cfg.Encryption.Key.Reveal())
	case cfg.Encryption.KeyFile != "":
		return seal.ReadFile(cfg.Encryption.KeyFile)
	}
	return local(filepath.Join(cfg.DataDir, encryptionKeyFile))
}

// warnOfLocalKey logs a warning when the key is in the data directory but Redis or the database
// is not.
func warnOfLocalKey(cfg *config.Config, log *slog.Logger) {
	if usesLocalKey(cfg) && (cfg.Redis.URL != redisx.Embedded || cfg.Storage.URL != "") {
		log.Warn("the encryption key is kept in data_dir, but Redis or the database is elsewhere: secrets there are lost with this directory, and other replicas cannot open them; set encryption.key or encryption.key_file",
			"file.path", filepath.Join(cfg.DataDir, encryptionKeyFile))
	}
}
