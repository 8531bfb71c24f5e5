//! Requests that are under way: in the order in which they came.
//!
//! A list whose links are places of a vector. To begin and to end a request takes a few steps, and
//! no memory once there were as many requests at a time before.

/// A place in the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot(u32);

impl Slot {
    /// No place: the end of the list, or a story that is not in it.
    pub const NONE: Slot = Slot(u32::MAX);
}

struct Link<S> {
    story: Option<S>,
    before: Slot,
    /// Of a place that is free, it is the next one that is free.
    after: Slot,
}

/// The stories of requests that have not ended.
pub(crate) struct Open<S> {
    links: Vec<Link<S>>,
    first: Slot,
    last: Slot,
    free: Slot,
}

impl<S> Default for Open<S> {
    fn default() -> Open<S> {
        Open { links: Vec::new(), first: Slot::NONE, last: Slot::NONE, free: Slot::NONE }
    }
}

impl<S> Open<S> {
    fn link(&mut self, slot: Slot) -> Option<&mut Link<S>> {
        self.links.get_mut(slot.0 as usize)
    }

    /// The story is the last from now on; returns its place.
    pub fn push(&mut self, story: S) -> Slot {
        let link = Link { story: Some(story), before: self.last, after: Slot::NONE };
        let slot = self.free;
        let slot = match self.link(slot) {
            Some(old) => {
                let next = old.after;
                *old = link;
                self.free = next;
                slot
            }
            None => {
                self.links.push(link);
                Slot(self.links.len() as u32 - 1)
            }
        };
        match self.link(self.last) {
            Some(last) => last.after = slot,
            None => self.first = slot,
        }
        self.last = slot;
        slot
    }

    /// The story at this place has ended.
    pub fn remove(&mut self, slot: Slot) {
        let free = self.free;
        let Some(link) = self.link(slot) else { return };
        let (before, after) = (link.before, link.after);
        *link = Link { story: None, before: Slot::NONE, after: free };
        self.free = slot;
        match self.link(before) {
            Some(before) => before.after = after,
            None => self.first = after,
        }
        match self.link(after) {
            Some(after) => after.before = before,
            None => self.last = before,
        }
    }

    /// All stories, the one that came first before all others.
    pub fn iter(&self) -> impl Iterator<Item = &S> {
        let mut slot = self.first;
        std::iter::from_fn(move || {
            let link = self.links.get(slot.0 as usize)?;
            slot = link.after;
            link.story.as_ref()
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// As a plain list, whatever ends in which order.
        #[test]
        fn it_keeps_the_order(steps in prop::collection::vec(any::<Option<u8>>(), 1..200)) {
            let (mut open, mut known, mut most) = (Open::default(), Vec::new(), 0);
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Some(at) if !known.is_empty() => {
                        let (_, slot) = known.remove(usize::from(at) % known.len());
                        open.remove(slot);
                    }
                    _ => known.push((number, open.push(number))),
                }
                most = most.max(known.len());
                let there: Vec<usize> = open.iter().copied().collect();
                let expected: Vec<usize> = known.iter().map(|(number, _)| *number).collect();
                prop_assert_eq!(there, expected);
                prop_assert!(open.links.len() <= most, "places are used again");
            }
        }
    }
}
