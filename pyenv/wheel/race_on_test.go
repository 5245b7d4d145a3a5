//go:build race

package wheel_test

const raceDetector = true
