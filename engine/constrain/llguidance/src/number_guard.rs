//! Bounds the length of JSON numbers: an aimless model would add digits until its token limit. Bounds
//! their exponents too: readers of doubles refuse 1e999.
//!
//! The guard only narrows masks, and never to none: it removes tokens that lengthen a number while
//! others remain. Text that a schema requires is therefore still possible, however long.

/// From here on a number ends as soon as it can. An exponent adds at most two more characters.
const MAX_RUN: usize = 30;
const MAX_EXPONENT_DIGITS: usize = 2;

fn is_of_number(byte: u8) -> bool {
    byte.is_ascii_digit() || matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E')
}

fn is_allowed(mask: &[u32], token: u32) -> bool {
    mask[token as usize / 32] >> (token % 32) & 1 != 0
}

/// The beginning of a token that may lie within a number.
fn leading_run(word: &[u8]) -> &[u8] {
    let n = word.iter().take_while(|&&b| is_of_number(b)).count();
    let is_odd = |pair: &[u8]| {
        let is_exponent = matches!(pair, [b'e' | b'E', b'-' | b'+']);
        !is_exponent && !pair.iter().any(u8::is_ascii_digit)
    };
    // No number has such pairs, as in a row of dashes.
    if word[..n].windows(2).any(is_odd) {
        return &[];
    }
    &word[..n]
}

/// The runs of number characters in the tokens of a vocabulary.
pub struct NumberTokens {
    leading: Vec<(u32, Box<[u8]>)>, // tokens that may lengthen a number, and their part in it
    longest: usize,                 // the length of the longest part
    too_long: Vec<u32>,             // tokens with a run beyond the bounds
}

impl NumberTokens {
    pub fn new(words: &[Vec<u8>]) -> Self {
        let mut out = NumberTokens {
            leading: Vec::new(),
            longest: 0,
            too_long: Vec::new(),
        };
        for (token, word) in words.iter().enumerate() {
            let token = token as u32;
            let part = leading_run(word);
            let mut place = Place::default();
            let exceeds = |&b: &u8| {
                place = place.after(&[b]);
                !place.is_within_bounds()
            };
            if word.iter().any(exceeds) {
                out.too_long.push(token);
            } else if !part.is_empty() {
                out.longest = out.longest.max(part.len());
                out.leading.push((token, part.into()));
            }
        }
        out
    }

    /// Narrows the mask after a text that ends at `place`. Returns false, with the mask undefined,
    /// if the text is complete and should not go on.
    pub fn narrow(&self, place: Place, is_complete: bool, mask: &mut [u32]) -> bool {
        if place.in_string {
            return true;
        }
        let has_long = self.too_long.iter().any(|&token| is_allowed(mask, token));
        let is_short = place.run + self.longest <= MAX_RUN && place.exponent.is_none();
        if is_short && !has_long {
            return true;
        }
        let given = mask.to_vec();
        let mut remove = |token: u32| mask[token as usize / 32] &= !(1 << (token % 32));
        for (token, part) in &self.leading {
            if place.is_full() || !place.after(part).is_within_bounds() {
                remove(*token);
            }
        }
        self.too_long.iter().for_each(|&token| remove(token));
        if mask.iter().any(|&word| word != 0) {
            return true;
        }
        if place.is_full() {
            if is_complete {
                return false;
            }
            // The number cannot end yet: one character at a time.
            for (token, _) in self.leading.iter().filter(|(_, part)| part.len() == 1) {
                if is_allowed(&given, *token) {
                    mask[*token as usize / 32] |= 1 << (token % 32);
                }
            }
        }
        if mask.iter().all(|&word| word == 0) {
            mask.copy_from_slice(&given);
        }
        true
    }
}

/// Where a JSON text ends.
#[derive(Clone, Copy, Default)]
pub struct Place {
    in_string: bool,
    is_escaped: bool,
    run: usize,              // number characters at the end, outside strings
    exponent: Option<usize>, // digits at the end, behind the e of that run
}

impl Place {
    pub fn after(mut self, bytes: &[u8]) -> Self {
        for &byte in bytes {
            if self.in_string {
                self.in_string = self.is_escaped || byte != b'"';
                self.is_escaped = !self.is_escaped && byte == b'\\';
                continue;
            }
            self.in_string = byte == b'"';
            if !is_of_number(byte) {
                self.run = 0;
                self.exponent = None;
                continue;
            }
            self.run += 1;
            if matches!(byte, b'e' | b'E') {
                self.exponent = Some(0);
            } else if byte.is_ascii_digit() {
                self.exponent = self.exponent.map(|n| n + 1);
            }
        }
        self
    }

    fn is_within_bounds(&self) -> bool {
        self.run <= MAX_RUN && self.exponent.unwrap_or(0) <= MAX_EXPONENT_DIGITS
    }

    fn is_full(&self) -> bool {
        self.run >= MAX_RUN || self.exponent.unwrap_or(0) >= MAX_EXPONENT_DIGITS
    }
}
