package canary

// Beat is what Run does once a second.
var Beat = (*Canary).beat
