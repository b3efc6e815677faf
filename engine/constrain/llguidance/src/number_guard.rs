//! Bounds the length of JSON numbers: an aimless model would add digits until its token limit.
//!
//! The guard only narrows masks, and never to none: it removes tokens that lengthen a number while
//! others remain. Text that a schema requires is therefore still possible, however long.

/// From here on a number ends as soon as it can. An exponent adds at most two more characters.
const MAX_RUN: usize = 30;

fn is_of_number(byte: u8) -> bool {
    byte.is_ascii_digit() || matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E')
}

fn is_allowed(mask: &[u32], token: u32) -> bool {
    mask[token as usize / 32] >> (token % 32) & 1 != 0
}

/// Length of the beginning of a token that may lie within a number.
fn leading_run(word: &[u8]) -> usize {
    let n = word.iter().take_while(|&&b| is_of_number(b)).count();
    let is_odd = |pair: &[u8]| {
        let is_exponent = matches!(pair, [b'e' | b'E', b'-' | b'+']);
        !is_exponent && !pair.iter().any(u8::is_ascii_digit)
    };
    // No number has such pairs, as in a row of dashes.
    if word[..n].windows(2).any(is_odd) {
        return 0;
    }
    n
}

/// The runs of number characters in the tokens of a vocabulary.
pub struct NumberTokens {
    leading: Vec<(u32, usize)>, // tokens that may lengthen a number, and by how much
    longest: usize,             // the most of them
    too_long: Vec<u32>,         // tokens with a run beyond the bound
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
            let n = leading_run(word);
            let mut place = Place::default();
            let is_long = |&b: &u8| {
                place = place.after(&[b]);
                place.run > MAX_RUN
            };
            if n > MAX_RUN || word[n..].iter().any(is_long) {
                out.too_long.push(token);
            } else if n > 0 {
                out.leading.push((token, n));
                out.longest = out.longest.max(n);
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
        if place.run + self.longest <= MAX_RUN && !has_long {
            return true;
        }
        let given = mask.to_vec();
        let mut remove = |token: u32| mask[token as usize / 32] &= !(1 << (token % 32));
        let most = MAX_RUN.saturating_sub(place.run);
        for &(token, _) in self.leading.iter().filter(|&&(_, n)| n > most) {
            remove(token);
        }
        self.too_long.iter().for_each(|&token| remove(token));
        if mask.iter().any(|&word| word != 0) {
            return true;
        }
        if place.run >= MAX_RUN {
            if is_complete {
                return false;
            }
            // The number cannot end yet: one character at a time.
            for &(token, _) in self.leading.iter().filter(|&&(_, n)| n == 1) {
                if is_allowed(&given, token) {
                    mask[token as usize / 32] |= 1 << (token % 32);
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
    run: usize, // number characters at the end, outside strings
}

impl Place {
    pub fn after(mut self, bytes: &[u8]) -> Self {
        for &byte in bytes {
            if self.in_string {
                self.in_string = self.is_escaped || byte != b'"';
                self.is_escaped = !self.is_escaped && byte == b'\\';
            } else {
                self.in_string = byte == b'"';
                self.run = if is_of_number(byte) { self.run + 1 } else { 0 };
            }
        }
        self
    }
}
