//! A row of the table of routes: a method and a path, the fields that it takes, and the request
//! that it makes to the engine. The names of verbs and of their fields are those of the control
//! protocol.

/// A method and a path.
pub struct Route {
    /// The method: `GET`, `POST`, `PUT`, `PATCH` or `DELETE`.
    pub method: &'static str,
    /// The path; names in braces are fields.
    pub path: &'static str,
    /// The act of the route.
    pub act: Act,
    /// The fields that the route takes.
    pub fields: Vec<Field>,
    /// The purpose of the route, for people.
    pub what: &'static str,
}

/// The act of a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// Asks the engine, and answers with a part of what it says.
    Ask(&'static str, ShownPart),
    /// Asks the engine for long work: a job.
    Job(&'static str),
    /// The list of all jobs.
    Jobs,
    /// The job that the path names.
    OneJob,
    /// One job, given up.
    CancelJob,
    /// A stream of the status.
    Events,
    /// The samples of the last hour.
    History,
    /// The last changes.
    Changes,
    /// The problems.
    Health,
    /// The meaning of the problem that the path names, and what to do.
    Advice,
    /// All metrics, in the format of Prometheus.
    Metrics,
    /// The OpenAPI document.
    OpenApi,
}

/// The part of an answer that is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShownPart {
    /// All of it.
    Whole,
    /// The cache of a status. Without one it is an error of kind `not-found`.
    Cache,
    /// The devices of a status.
    Devices,
    /// The one of a list of volumes or snapshots that goes by the field `name`.
    Named,
    /// The only one of a list.
    First,
}

/// A field that a route takes.
pub struct Field {
    /// The name of the field, in the request to the engine too.
    pub name: &'static str,
    /// The place of the field.
    pub place: Place,
    /// The kind of the field's values.
    pub kind: Kind,
    /// Whether it can be absent.
    pub need: Need,
    /// The meaning of the field.
    pub what: String,
}

/// The place of a field in a request.
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

/// The kind of a field's values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Any text.
    Text,
    /// The name of something that is made: a text that is not empty, and not too long.
    Name,
    /// A list of texts.
    Texts,
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
    /// The field cannot be absent.
    Must,
    /// The field can be absent.
    May,
    /// The field can be absent, and has this value then, as JSON.
    Else(&'static str),
}

impl Route {
    /// The request of the control protocol that it becomes, if it becomes one.
    pub fn verb(&self) -> Option<&'static str> {
        match self.act {
            Act::Ask(verb, _) | Act::Job(verb) => Some(verb),
            Act::Events | Act::Changes | Act::Health | Act::Metrics => Some("status"),
            Act::History
            | Act::Advice
            | Act::Jobs
            | Act::OneJob
            | Act::CancelJob
            | Act::OpenApi => None,
        }
    }

    /// Whether clients without a token may have it where no token is set.
    pub fn is_basic(&self) -> bool {
        matches!(self.act, Act::Health | Act::Metrics)
    }

    /// The fields in one place.
    pub fn at(&self, place: Place) -> impl Iterator<Item = &Field> {
        self.fields.iter().filter(move |field| field.place == place)
    }
}
