//! What a row of the table of routes says: a method and a path, what it takes, and what it asks the
//! engine for. The names of verbs and of their fields are those of the control protocol.

/// A method and a path.
pub struct Route {
    /// The method: `GET`, `POST`, `PUT`, `PATCH` or `DELETE`.
    pub method: &'static str,
    /// The path; names in braces are fields.
    pub path: &'static str,
    /// What it does.
    pub act: Act,
    /// What it takes.
    pub fields: &'static [Field],
    /// What it is for.
    pub what: &'static str,
}

/// What a route does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// Asks the engine, and answers with a part of what it says.
    Ask(&'static str, Shown),
    /// Asks the engine for long work: a job.
    Job(&'static str),
    /// All jobs.
    Jobs,
    /// One job.
    OneJob,
    /// One job, given up.
    CancelJob,
    /// The status, again and again.
    Events,
    /// The last hour.
    History,
    /// What is wrong.
    Health,
    /// Metrics.
    Metrics,
    /// The OpenAPI document.
    OpenApi,
}

/// The part of an answer that is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shown {
    /// All of it.
    Whole,
    /// What is at this JSON pointer. It is an error of kind `not-found`, with this text, if nothing
    /// is.
    Part(&'static str, &'static str),
    /// The one of a list whose `name` is the field of that name.
    Named,
    /// The only one of a list.
    First,
}

/// Something that a route takes.
pub struct Field {
    /// Its name, in the request to the engine too.
    pub name: &'static str,
    /// Where it is.
    pub place: Place,
    /// What it can be.
    pub kind: Kind,
    /// Whether it can be absent.
    pub need: Need,
    /// What it says.
    pub what: &'static str,
}

/// Where a field is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In the path, in the order of the braces.
    Path,
    /// Behind the question mark.
    Query,
    /// In the JSON object of the body.
    Body,
    /// Nowhere: the route itself says it. `need` has the value.
    Fixed,
    /// Behind the question mark, and not for the engine.
    Here,
}

/// What a field can be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A text.
    Text,
    /// The name of something that is made: a text that is not empty, and not too long.
    Name,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A text, or a number that is taken as one.
    Scalar,
    /// A whole number from the first to the second.
    Whole(u64, u64),
    /// `true` or `false`.
    Flag,
}

/// Whether a field can be absent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// It cannot.
    Must,
    /// It can.
    May,
    /// Then it has this value, as JSON.
    Else(&'static str),
}

impl Route {
    /// The request of the control protocol that it becomes, if it becomes one.
    pub fn verb(&self) -> Option<&'static str> {
        match self.act {
            Act::Ask(verb, _) | Act::Job(verb) => Some(verb),
            Act::Events | Act::Health | Act::Metrics => Some("status"),
            Act::History | Act::Jobs | Act::OneJob | Act::CancelJob | Act::OpenApi => None,
        }
    }

    /// Whether clients without a token may have it where no token is set.
    pub fn is_basic(&self) -> bool {
        matches!(self.act, Act::Health | Act::Metrics)
    }

    /// The fields in one place.
    pub fn at(&self, place: Place) -> impl Iterator<Item = &'static Field> + use<> {
        self.fields.iter().filter(move |field| field.place == place)
    }
}
