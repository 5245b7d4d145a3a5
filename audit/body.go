package audit

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
)

// saltSize is 128 bits: enough that a digest of guessable arguments tells
// nothing once the body with the salt was pruned.
const saltSize = 16

// seal digests raw arguments with a new salt. The digest and the SHA-256 of the
// body go into the record; the body can be pruned, the record stays provable.
func seal(r *Record, raw []byte) (body []byte) {
	salt := make([]byte, saltSize)
	rand.Read(salt) // never fails: it ends the process instead
	r.Argd = hex.EncodeToString(argsDigest(salt, raw))
	body = append(body, `{"salt":"`...)
	body = hex.AppendEncode(body, salt)
	body = append(body, `"}`...)
	r.Body = digestOf(string(body))
	return body
}

func argsDigest(salt, raw []byte) []byte {
	m := hmac.New(sha256.New, salt)
	m.Write(raw)
	return m.Sum(nil)
}
