//! Trees that are not needed any more. Each node that a tree alone holds is freed with it, and they
//! may be as many as a transaction has changed: so they are freed some at a time.

use std::rc::Rc;

use super::{Link, Tree};
use crate::node::Node;

/// Trees to be freed. Dropped, they are freed in one step.
#[derive(Default)]
pub struct UnneededTrees(Vec<Rc<Node>>);

impl UnneededTrees {
    /// The given trees.
    pub fn of(trees: impl Iterator<Item = Tree>) -> UnneededTrees {
        let mut all = UnneededTrees::default();
        trees.for_each(|tree| all.add(tree));
        all
    }

    /// One more tree.
    pub fn add(&mut self, tree: Tree) {
        if let Some(Link::Mem(node)) = tree.root {
            self.0.push(node);
        }
    }

    /// Lets go of about `max` nodes: those are freed that no other tree holds. True if there are
    /// more.
    pub fn free(&mut self, max: usize) -> bool {
        for _ in 0..max {
            let Some(node) = self.0.pop() else { return false };
            if let Some(mut node) = Rc::into_inner(node) {
                self.0.extend(node.children.drain(..).flatten());
            }
        }
        !self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use base::Generation;

    use super::*;
    use crate::{Changes, Store};

    fn add(tree: &mut Tree, store: &mut Store, keys: std::ops::Range<u32>) {
        let mut changes = Changes::new(Generation(1));
        for key in keys {
            let key = key.to_be_bytes();
            let mut editor = store.edit(tree, &mut changes, &key, &key).expect("all is in memory");
            editor.insert(&key, &[7; 100]);
        }
    }

    #[test]
    fn nodes_are_freed_some_at_a_time_and_none_that_others_hold() {
        let (mut store, mut tree) = (Store::new(1 << 20), Tree::new(7));
        add(&mut tree, &mut store, 0..20_000);
        let other = tree.clone();
        let watched = match &tree.root {
            Some(Link::Mem(root)) => {
                root.children.iter().flatten().map(Rc::downgrade).collect::<Vec<_>>()
            }
            _ => panic!("it is in memory"),
        };
        assert!(watched.len() > 1);
        let mut trees = UnneededTrees::of([tree].into_iter());
        assert!(!trees.free(10), "another tree has all of it");
        assert!(watched.iter().all(|node| node.strong_count() == 1));
        trees.add(other);
        let mut steps = 1;
        while trees.free(10) {
            steps += 1;
        }
        assert!(steps > 20, "{steps}");
        assert!(watched.iter().all(|node| node.strong_count() == 0));
    }
}
